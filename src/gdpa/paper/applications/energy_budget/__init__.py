"""Networks under an energy budget: an energy model, training of weights and widths, pruning to a smaller network.

`Chain` reads a network, `CountedEnergy` and `MeasuredEnergy` give the cost of a call, `fit_energy` makes psi of such
readings, `EnergyBudget` is the problem, `prune` makes a smaller dense network, and `compress` does all of it.
"""

from gdpa.paper.applications.energy_budget.budget import (
    EnergyBudget,
    EnergyFit,
    EnergyModel,
    fit_energy,
    sample_widths,
    smooth_count,
)
from gdpa.paper.applications.energy_budget.compress import (
    Batches,
    Compressed,
    OverBudgetError,
    Pruned,
    compress,
    fit_widths,
    measure_model,
    prune,
    prune_by_norm,
    train,
    train_within,
)
from gdpa.paper.applications.energy_budget.network import (
    Chain,
    Costs,
    CountedEnergy,
    LayerCost,
    MeasuredEnergy,
    count_layers,
    rapl_counter,
)

__all__ = [
    "Batches", "Chain", "Compressed", "Costs", "CountedEnergy", "EnergyBudget", "EnergyFit", "EnergyModel", "LayerCost",
    "MeasuredEnergy", "OverBudgetError", "Pruned", "compress", "count_layers", "fit_energy", "fit_widths",
    "measure_model", "prune", "prune_by_norm", "rapl_counter", "sample_widths", "smooth_count", "train", "train_within",
]  # fmt: skip
