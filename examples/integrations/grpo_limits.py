"""Post-training with limits: a GRPO-shaped loss under limits on KL, length and cost. Needs torch alone.

Start it with

    python examples/integrations/grpo_limits.py

The policy is a table of next-token logits, so that the run takes seconds; `trl_grpo.py` is the same with TRL. Reward is
paid for each token LIKED and more for each token RUDE, so that the policy would drift from its reference, talk at
length and be rude. A penalty on each would need a weight; here each has a limit.
"""

import copy

import torch

import gdpa.torch
from gdpa.torch import Limits, at_most, terms

VOCABULARY, LONGEST, GROUP, PROMPTS = 12, 16, 8, 16
END, LIKED, RUDE = 0, 1, 2
LIMITS = Limits(kl=at_most(0.3), length=at_most(7.0), rude=at_most(0.1))


def generate(policy, prompts):
    """Draw one completion for each prompt token; return tokens and which of them count (up to and with END)."""
    tokens, alive, mask = [prompts], torch.ones_like(prompts, dtype=torch.bool), []
    for _ in range(LONGEST):
        drawn = torch.distributions.Categorical(logits=policy(tokens[-1])).sample()
        mask.append(alive)
        tokens.append(torch.where(alive, drawn, END))
        alive = alive & (drawn != END)
    return torch.stack(tokens, 1), torch.stack(mask, 1)


def log_probabilities(policy, tokens):
    """Return the log probability of every drawn token, shape (n, LONGEST)."""
    return torch.log_softmax(policy(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def losses(policy, reference, tokens, mask):
    """Return the GRPO loss and the terms that are limited."""
    drawn = tokens[:, 1:]
    reward = ((drawn == LIKED) * 1.0 + (drawn == RUDE) * 2.0).sum(1)
    groups = reward.view(PROMPTS, GROUP)
    advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)
    logp = log_probabilities(policy, tokens)
    with torch.no_grad():
        start = log_probabilities(reference, tokens)
    ratio = torch.exp(logp - logp.detach())  # one update per batch: nothing to clip
    loss = -((ratio * advantage[:, None] * mask).sum(1) / mask.sum(1)).mean()
    f = terms.proxy(loss, -reward.mean())  # GRPO's loss is 0 in value: report the reward, follow the loss's gradient
    whole = (logp * mask).sum(1)
    return f, {
        "kl": terms.kl_sampled(logp, start, mask),
        "length": terms.sampled_cost(mask.sum(1).float(), whole, bounds=(1, LONGEST)),
        "rude": terms.sampled_cost((drawn == RUDE).any(1), whole),
    }


def main(steps=1000):
    torch.manual_seed(0)
    policy = torch.nn.Embedding(VOCABULARY, VOCABULARY)
    torch.nn.init.normal_(policy.weight, std=0.1)
    reference = copy.deepcopy(policy)
    opt = gdpa.torch.constrain(torch.optim.Adam(policy.parameters(), lr=0.02), LIMITS)
    for _ in range(steps):
        prompts = torch.randint(3, VOCABULARY, (PROMPTS,)).repeat_interleave(GROUP)
        with torch.no_grad():
            tokens, mask = generate(policy, prompts)
        opt.zero_grad()
        opt.lagrangian(*losses(policy, reference, tokens, mask)).backward()
        opt.step()
    print(opt.report(tolerance=0.1))
    return policy, reference, opt


if __name__ == "__main__":
    main()
