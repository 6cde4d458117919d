"""DeepSpeed: hand the optimizer to ``initialize``, and the Lagrangian to the engine's backward. Start it with

    pip install deepspeed
    deepspeed --num_gpus 2 examples/integrations/deepspeed_engine.py

or, on a machine without GPU,

    python examples/integrations/deepspeed_engine.py

ZeRO stage 0 leaves the optimizer as it is. The higher stages cut parameters into pieces of their own; for sharded
training use FSDP2, with which the optimizer works (docs/torch.md).
"""

import os

import deepspeed
import torch

import gdpa.torch

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "gradient_clipping": 10.0,
    "zero_optimization": {"stage": 0},
    "zero_allow_untested_optimizer": True,
}


def main():
    for key, value in ALONE.items():
        os.environ.setdefault(key, value)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo", verbose=False)
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    net = torch.nn.Linear(4, 1)
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.02), ["mean"])
    engine, *_ = deepspeed.initialize(model=net, optimizer=opt, config=CONFIG)
    for _ in range(60):
        for part in torch.randperm(256).split(32):
            inputs = x[part].to(engine.device)
            out = engine.module(inputs).squeeze(-1)  # calibration takes gradients, which the engine's forward refuses
            loss = opt.lagrangian((out - inputs[:, 0]).square().mean(), {"mean": 1 - out.mean()}, samples=len(inputs))
            engine.backward(loss)
            engine.step()
    print(opt.report(tolerance=0.1))
    torch.distributed.destroy_process_group()
    return net, opt, x


if __name__ == "__main__":
    main()
