"""AC optimal power flow with 9 buses: 18 equalities, 18 limits of branch flows, 24 variables in a box.

The network and the optimal cost, 5296.69 $/h, are those of ``case9`` of MATPOWER (R. D. Zimmerman, C. E.
Murillo-Sanchez and R. J. Thomas, IEEE Transactions on Power Systems 26, 2011).
"""

import numpy as np
import pytest
import torch

import gdpa

BASE = 100.0  # MVA
#: From bus, to bus, resistance, reactance, charging susceptance, limit in MVA.
BRANCHES = np.array(
    [
        [1, 4, 0.0, 0.0576, 0.0, 250],
        [4, 5, 0.017, 0.092, 0.158, 250],
        [5, 6, 0.039, 0.17, 0.358, 150],
        [3, 6, 0.0, 0.0586, 0.0, 300],
        [6, 7, 0.0119, 0.1008, 0.209, 150],
        [7, 8, 0.0085, 0.072, 0.149, 250],
        [8, 2, 0.0, 0.0625, 0.0, 250],
        [8, 9, 0.032, 0.161, 0.306, 250],
        [9, 4, 0.01, 0.085, 0.176, 250],
    ]
)
BUSES = 9
DEMAND = {4: (90, 30), 6: (100, 35), 8: (125, 50)}  # MW and MVAr of buses 5, 7 and 9
COST = np.array([[0.11, 5.0, 150.0], [0.085, 1.2, 600.0], [0.1225, 1.0, 335.0]])  # of generators 1 to 3


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def problem():
    first, last = BRANCHES[:, 0].astype(int) - 1, BRANCHES[:, 1].astype(int) - 1
    series, shunt = 1 / (BRANCHES[:, 2] + 1j * BRANCHES[:, 3]), 0.5j * BRANCHES[:, 4]
    Y = np.zeros((BUSES, BUSES), dtype=complex)
    for i, k, y, c in zip(first, last, series, shunt, strict=True):
        Y[i, i] += y + c
        Y[k, k] += y + c
        Y[i, k] -= y
        Y[k, i] -= y
    demand = torch.zeros(BUSES, dtype=torch.complex128)
    for bus, (p, q) in DEMAND.items():
        demand[bus] = complex(p, q) / BASE  # type: ignore[assignment]
    Y, series, shunt = (torch.tensor(values) for values in (Y, series, shunt))  # type: ignore[assignment]
    limits, cost = tensor(BRANCHES[:, 5] / BASE), tensor(COST)
    embed = torch.eye(BUSES, 3, dtype=torch.complex128)  # the generators are at the first three buses

    def function(x):
        size, angle, p, q = torch.split(x, [BUSES, BUSES, 3, 3])
        v = torch.polar(size, angle)
        balance = v * (Y @ v).conj() - embed @ torch.complex(p, q) + demand
        flows = []
        for a, b in ((first, last), (last, first)):
            flow = v[a] * (series * (v[a] - v[b]) + shunt * v[a]).conj()
            flows.append(flow.real**2 + flow.imag**2 - limits**2)
        f = (cost[:, 0] * (BASE * p) ** 2 + cost[:, 1] * BASE * p + cost[:, 2]).sum()
        return f, torch.cat([*flows, balance.real, balance.imag])  # type: ignore[list-item]

    lower = [0.9] * BUSES + [0.0] + [-np.pi] * (BUSES - 1) + [0.1] * 3 + [-3.0] * 3
    upper = [1.1] * BUSES + [0.0] + [np.pi] * (BUSES - 1) + [2.5, 3.0, 2.7] + [3.0] * 3
    start = [1.0] * BUSES + [0.0] * BUSES + [1.2] * 3 + [0.0] * 3
    domain = gdpa.Box(tensor(lower), tensor(upper))
    return gdpa.from_torch(function, num_equalities=2 * BUSES, domain=domain), tensor(start)


def test_the_cost_is_that_of_matpower():
    result = gdpa.solve(*problem(), record=0)
    assert result.success
    assert float(result.objective) == pytest.approx(5296.69, abs=0.01)
