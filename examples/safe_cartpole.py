"""CartPole under two budgets: the share of time off the middle of the track, and how often the force is switched.

python examples/safe_cartpole.py --updates 400 --seeds 3 --out results/cartpole      (toy size: --updates 12 --seeds 1)
"""

import argparse
from pathlib import Path

import torch

from gdpa.applications.cmdp.cartpole import CostlyCartPole
from gdpa.applications.cmdp.neural import ActorCritic
from gdpa.experiments.figures.chart import save
from gdpa.experiments.figures.learning import learning_chart
from gdpa.experiments.provenance import about
from gdpa.experiments.record_file import RecordFile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--updates", type=int, default=400)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--out", type=Path, default=Path("results/cartpole"))
given = parser.parse_args()
given.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)

budgets = {"position": 0.05, "switching": 0.25}
runs: dict[str, list] = {"GDPA": [], "plain policy gradient": []}
records = RecordFile(given.out / "records.jsonl")
records.replace([])
origin = about(f"python examples/safe_cartpole.py --updates {given.updates} --seeds {given.seeds}")
for method, finished in runs.items():
    ours = method == "GDPA"
    learner = ActorCritic(CostlyCartPole, budgets, constrained=ours, warmup=given.updates // 4, dual_rate=0.2)
    for seed in range(given.seeds):
        trained = learner.train(given.updates, seed)
        finished.append({name: [row[name] for row in trained.rows] for name in trained.rows[0]})
        last = {"method": method, "seed": seed, "evaluation": trained.evaluate(episodes=50)}
        records.append({**last, "columns": finished[-1], "about": origin})
        print(last, flush=True)
print("drawn:", *save(learning_chart(runs, budgets), given.out))
