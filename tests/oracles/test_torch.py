import numpy as np
import pytest

import gdpa
from gdpa import GDPA, MaxSteps, certify, from_module, from_torch, solve

torch = pytest.importorskip("torch")


def function(x):
    a, b = x[..., 0], x[..., 1]
    return torch.sin(a) * b, torch.stack([a**2 - b, a * b, b**3], dim=-1)


def exact(a, b):
    return np.array([np.cos(a) * b, np.sin(a)]), np.array([[2 * a, -1.0], [b, a], [0.0, 3 * b**2]])


X = torch.tensor([0.3, -0.7], dtype=torch.float64)


def test_the_pullback_is_one_weighted_backward():
    now = from_torch(function).evaluate(X)
    gradient, J = exact(0.3, -0.7)
    w = torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64)
    assert now.pullback(w).numpy() == pytest.approx(gradient + w.numpy() @ J)
    assert now.pullback(w, objective=0.0).numpy() == pytest.approx(w.numpy() @ J)
    assert now.jacobian().numpy() == pytest.approx(J)
    assert not now.objective.requires_grad
    assert not now.constraints.requires_grad
    assert not now.pullback(w).requires_grad


def test_a_batch_is_its_members_and_weights_may_differ():
    points = torch.tensor([[0.3, -0.7], [1.1, 0.4]], dtype=torch.float64)
    weights = torch.tensor([[2.0, -3.0, 0.5], [1.0, 1.0, 0.0]], dtype=torch.float64)
    whole = from_torch(function).evaluate(points).pullback(weights, torch.tensor([1.0, 0.5]))
    for i, scale in enumerate((1.0, 0.5)):
        one = from_torch(function).evaluate(points[i]).pullback(weights[i], scale)
        assert whole[i].numpy() == pytest.approx(one.numpy())


def test_the_point_is_left_alone_and_no_grad_does_not_matter():
    x = X.clone()
    with torch.no_grad():
        now = from_torch(function).evaluate(x)
        slope = now.pullback(torch.ones(3, dtype=torch.float64))
    assert torch.isfinite(slope).all()
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(dtype):
    now = from_torch(function).evaluate(X.to(dtype))
    assert now.objective.dtype == now.constraints.dtype == now.pullback(torch.ones(3, dtype=dtype)).dtype == dtype


def test_a_part_that_does_not_depend_on_x_has_no_gradient():
    constant = from_torch(lambda x: ((x**2).sum(-1), torch.ones(1, dtype=x.dtype)))
    assert constant.evaluate(X).pullback(torch.ones(1)).tolist() == (2 * X).tolist()
    flat = from_torch(lambda x: (torch.zeros((), dtype=x.dtype), x[:1]))
    assert flat.evaluate(X).pullback(torch.ones(1)).tolist() == [1.0, 0.0]
    unconstrained = from_torch(lambda x: ((x**2).sum(-1), x[..., :0]))
    assert unconstrained.evaluate(X).pullback(torch.zeros(0)).tolist() == (2 * X).tolist()


def test_values_cut_off_from_x_are_refused():
    with pytest.raises(ValueError, match="neither f nor g depends on x through torch operations"):
        from_torch(lambda x: (x.detach().sum(), x.detach()[:1])).evaluate(X)


def test_numpy_points_are_refused():
    with pytest.raises(TypeError, match="x must be a torch tensor for a torch problem, got ndarray"):
        from_torch(function).evaluate(np.ones(2))


def test_a_recorded_answer_is_certified_in_torch():
    own = from_torch(lambda x: ((x[0] - 2) ** 2 + (x[1] - 1) ** 2, torch.stack([x[0] + x[1] - 2, x[0] ** 2 - x[1]])))
    certificate = certify(own, torch.ones(2, dtype=torch.float64))
    assert certificate.multipliers.numpy() == pytest.approx([2 / 3, 2 / 3])
    assert certificate.holds(1e-8)


# Modules


def network():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    data = torch.randn(8, 3, dtype=torch.float64)
    return net, data


def loss_of(data):
    return lambda net: (net(data).square().mean(), torch.stack([1 - net(data).mean(), net(data).sum() - 3]))


def test_a_module_is_flattened_and_its_gradients_are_autograds():
    net, data = network()
    training = from_module(net, loss_of(data))
    assert training.x0.shape == (3 * 4 + 4 + 4 + 1,)
    now = training.problem.evaluate(training.x0)
    w = torch.tensor([0.5, 2.0], dtype=torch.float64)
    f, g = loss_of(data)(net)
    assert float(now.objective) == pytest.approx(float(f.detach()))
    (f + w @ g).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    assert now.pullback(w).numpy() == pytest.approx(expected.numpy())


def test_a_solution_is_loaded_back_with_its_shapes():
    net, data = network()
    training = from_module(net, loss_of(data))
    shapes = [p.shape for p in net.parameters()]
    before = net(data).detach().clone()
    result = solve(training.problem, training.x0, GDPA(alpha=0.05), stop=MaxSteps(30))
    assert torch.equal(net(data), before)  # training does not touch the module until asked
    training.load(result.x_last)
    assert [p.shape for p in net.parameters()] == shapes
    f, g = loss_of(data)(net)
    now = training.problem.evaluate(result.x_last)
    assert float(f.detach()) == pytest.approx(float(now.objective))
    assert g.detach().numpy() == pytest.approx(now.constraints.numpy())
    with pytest.raises(ValueError, match=r"x has shape \(3,\), expected \(21,\)"):
        training.load(torch.zeros(3))


def test_frozen_parameters_and_buffers_stay():
    net, data = network()
    net[0].weight.requires_grad_(False)
    frozen = net[0].weight.clone()
    training = from_module(net, loss_of(data))
    assert training.x0.shape == (4 + 4 + 1,)
    training.load(training.x0 + 1)
    assert torch.equal(net[0].weight, frozen)
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="module has no parameter that requires a gradient"):
        from_module(net, loss_of(data))


def test_the_front_door_loads_it_lazily():
    assert gdpa.from_torch is from_torch
    assert gdpa.from_module is from_module
    with pytest.raises(AttributeError, match="has no attribute 'from_tensorflow'"):
        _ = gdpa.from_tensorflow
    with pytest.raises(AttributeError, match="has no attribute 'from_tensorflow'"):
        _ = gdpa.oracles.from_tensorflow
