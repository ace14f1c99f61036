"""Norms and stable rank against numpy on the explicit Jacobian; estimates next to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.vision import estimated_norms, jacobian_norms
from robustcf.vision.measures import report
from tests.vision.nets import explicit, images, small_net


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [None, 3])
def test_exact_norms(seed, block):
    net, x = small_net(seed, batch_norm=True), images(seed, 5)
    net.eval()
    matrices = explicit(net, x).numpy()
    net.train()  # measured in evaluation mode, regardless of the current mode
    norms = jacobian_norms(net, x, batch_size=2, block=block)
    for n, J in enumerate(matrices):
        singular = np.linalg.svd(J, compute_uv=False)
        assert float(norms.frobenius[n]) == pytest.approx(np.linalg.norm(J))
        assert float(norms.spectral[n]) == pytest.approx(singular[0])
        assert float(norms.infinity[n]) == pytest.approx(np.linalg.norm(J.T, np.inf))
        assert float(norms.two_to_inf[n]) == pytest.approx(max(map(np.linalg.norm, J)))
        rank = np.sum(singular**2) / singular[0] ** 2
        assert float(norms.stable_rank[n]) == pytest.approx(rank)
    means = norms.means()
    assert means["stable_rank"] == pytest.approx(float(norms.stable_rank.mean()))
    assert net.training


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_estimates_approach_the_exact_stable_rank(seed):
    net, x = small_net(seed), images(seed, 4)
    exact = jacobian_norms(net, x)
    close = estimated_norms(net, x, projections=2000, steps=60, generator=seed, batch_size=3)
    torch.testing.assert_close(close.stable_rank, exact.stable_rank, rtol=0.08, atol=0)
    assert bool((close.spectral <= exact.spectral * (1 + 1e-9)).all())
    assert close.two_to_inf is None
    assert "two_to_inf" not in close.means()


def test_the_report_has_the_papers_columns():
    net, x = small_net(0), images(0, 9)
    y = net(x).argmax(dim=1)
    exact = report(net, x, y, jacobian_images=4)
    assert exact["accuracy"] == 1.0
    assert exact["fgsm"] <= 1.0
    assert exact["jacobian_images"] == 4
    assert exact["stable_rank"] == pytest.approx(
        float(jacobian_norms(net, x[:4]).stable_rank.mean())
    )
    estimated = report(net, x, y, jacobian_images=4, estimate_above=2)
    assert estimated["stable_rank"] == pytest.approx(exact["stable_rank"], rel=0.5)
    assert "two_to_inf" not in estimated
    untouched = report(net, x, y, eps=0.0)
    assert untouched["fgsm"] == untouched["pgd"] == untouched["accuracy"]
