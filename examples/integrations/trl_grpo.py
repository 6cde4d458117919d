"""TRL's GRPOTrainer under limits on KL, length and cost, instead of a tuned ``beta``. Start it with

    pip install trl
    python examples/integrations/trl_grpo.py

The model is a small random one, made here: no download. `grpo_limits.py` is the same recipe without TRL.
"""

import copy

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import gdpa.torch
from gdpa.torch import Limits, at_most, terms

WORDS = ["<pad>", "<end>", "please", "rude", *(f"word{i}" for i in range(12))]
LONGEST = 12
LIMITS = Limits(kl=at_most(0.3), length=at_most(6.0), rude=at_most(0.2))


class ConstrainedGRPO(GRPOTrainer):
    """Adds the limits to TRL's own loss. Costs a second forward pass, which TRL's loss does not hand out."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        f = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not model.training:
            return f
        drawn, mask = inputs["completion_ids"], inputs["completion_mask"].bool()
        logp = self.log_probabilities(model, inputs)
        with torch.no_grad():
            start = self.log_probabilities(self.reference, inputs)
        whole = (logp * mask).sum(1)
        values = {
            "kl": terms.kl_sampled(logp, start, mask),
            "length": terms.sampled_cost(mask.sum(1).float(), whole, bounds=(0, LONGEST)),
            "rude": terms.sampled_cost(((drawn == WORDS.index("rude")) & mask).any(1), whole),
        }
        reward = self.reward(drawn, mask)
        return self.constrained.lagrangian(terms.proxy(f, -reward), values)  # GRPO's loss is 0 in value

    def log_probabilities(self, model, inputs):
        """Return the log probabilities of the drawn tokens, shape (n, completion)."""
        drawn = inputs["completion_ids"]
        tokens = torch.cat([inputs["prompt_ids"], drawn], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        logits = model(input_ids=tokens, attention_mask=seen).logits[:, -drawn.shape[1] - 1 : -1]
        return torch.log_softmax(logits, -1).gather(-1, drawn[..., None]).squeeze(-1)

    def reward(self, drawn, mask):
        return ((drawn == WORDS.index("please")) & mask).sum(1).float().mean()

    def log(self, logs, *args, **kwargs):
        super().log({**logs, **gdpa.torch.scalars(self.constrained.snapshot())}, *args, **kwargs)


def polite(completions, **_):
    """Pay for each "please", and more for each "rude": that is what the limit is for."""
    return [text.split().count("please") + 2.0 * text.split().count("rude") for text in completions]


def make_tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", padding_side="left")


def main(folder=".", steps=1000):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1,
        pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    reference = copy.deepcopy(model).eval()  # before the trainer wraps the forward pass, which a later copy would share
    opt = gdpa.torch.constrain(torch.optim.AdamW(model.parameters(), lr=1e-3), LIMITS)
    args = GRPOConfig(
        folder, max_steps=steps, per_device_train_batch_size=32, num_generations=8, max_completion_length=LONGEST,
        report_to=[], save_strategy="no", logging_steps=10, use_cpu=True, bf16=False, disable_tqdm=True,
        gradient_checkpointing=False, loss_type="grpo",
    )  # fmt: skip
    prompts = Dataset.from_list([{"prompt": f"word{i} word{(i + 5) % 12}"} for i in range(12)] * 8)
    schedule = torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    trainer = ConstrainedGRPO(
        model, polite, args, prompts, processing_class=make_tokenizer(), optimizers=(opt, schedule)
    )
    trainer.constrained, trainer.reference = opt, reference
    trainer.train()
    print(opt.report(tolerance=0.1))
    return opt, trainer


if __name__ == "__main__":
    main()
