"""Networks under an energy budget: an energy model, training of weights and widths, pruning to a smaller network.

`Chain` reads a network, `CountedEnergy` and `MeasuredEnergy` say what a call costs, `fit_energy` makes psi of such
readings, `EnergyBudget` is the problem, `prune` makes a smaller dense network, and `compress` does all of it.
"""

from gdpa.paper.applications.energy_budget.budgeted import EnergyBudget, smooth_count
from gdpa.paper.applications.energy_budget.chain import Chain
from gdpa.paper.applications.energy_budget.counting import (
    Costs,
    CountedEnergy,
    LayerCost,
    MeasuredEnergy,
    count_layers,
    rapl_counter,
)
from gdpa.paper.applications.energy_budget.model import EnergyFit, EnergyModel, fit_energy, sample_widths
from gdpa.paper.applications.energy_budget.pruning import OverBudgetError, Pruned, fit_widths, prune, prune_by_norm
from gdpa.paper.applications.energy_budget.training import (
    Batches,
    Compressed,
    compress,
    measure_model,
    train,
    train_within,
)

__all__ = [
    "Batches",
    "Chain",
    "Compressed",
    "Costs",
    "CountedEnergy",
    "EnergyBudget",
    "EnergyFit",
    "EnergyModel",
    "LayerCost",
    "MeasuredEnergy",
    "OverBudgetError",
    "Pruned",
    "compress",
    "count_layers",
    "fit_energy",
    "fit_widths",
    "measure_model",
    "prune",
    "prune_by_norm",
    "rapl_counter",
    "sample_widths",
    "smooth_count",
    "train",
    "train_within",
]
