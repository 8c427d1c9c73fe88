"""Complex numbers under DTR: views with a conjugate or negative bit are read as plain torch reads them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from tests.exec.dtr_steps import Body, X, both, step


def pair(x):
    """A complex tensor from a real one."""
    return torch.complex(x, x.cos())


def long_convolution(module, x):
    kernel = torch.fft.rfft(module.layers[0].bias, n=48)
    return torch.fft.irfft(torch.fft.rfft(x, n=48) * kernel, n=48)[:, :24]


def fourier_layer(module, x):
    return torch.fft.ifft2(torch.fft.fft2(x) * module.spectrum).real


def hermitian(module, x):
    return torch.fft.hfft(pair(x), n=24) + torch.fft.ihfft(x, n=48)[:, :24].imag


def conjugated(module, x):
    z = pair(x) * module.spectrum
    return (z * z.conj() + z.conj() * module.spectrum + z.conj().resolve_conj()).imag + z.mH.sum().real


def negated(module, x):
    z = pair(x) * module.spectrum
    turned = z.conj()
    return turned.imag.sin() + turned.imag[:, :1] * turned.real - torch.view_as_real(turned.resolve_conj()).sum(-1)


def polar(module, x):
    z = torch.polar(x.abs(), x.sin())
    return (z.angle() + z.abs() + z.sgn().real) * 0.3


def spectrogram(module, x):
    window = torch.hann_window(24)
    frames = torch.fft.rfft(x * window)
    return torch.istft(torch.view_as_complex(torch.view_as_real(frames.mT * 2)), 24, 12, window=torch.ones(24))[:24] + x


def products(module, x):
    z = pair(x)
    gram = z.mH @ z / 64 + torch.eye(24)
    return (z.conj() @ gram).real + torch.linalg.solve(gram, z.mT.conj()).mT.imag + torch.vdot(z[0], z[1]).real


def written(module, x):
    z = pair(x * 2)
    turned = z.conj()
    turned.mul_(module.spectrum)
    z.imag.add_(x)
    turned.imag[:, :3] = x[:, 3:6]
    return (z * turned.conj()).real + z.imag.neg()


class Spectral(Body):
    """Layers with something in between that may read a complex parameter."""

    def __init__(self, between):
        super().__init__(between)
        self.spectrum = nn.Parameter(torch.randn(24, dtype=torch.cfloat))


@pytest.mark.parametrize(
    "between",
    [long_convolution, fourier_layer, hermitian, conjugated, negated, polar, spectrogram, products, written],
)
def test_complex_steps_are_those_of_plain_torch(between):
    both(lambda: Spectral(between))


class Layers(nn.Module):
    """Complex linear layers; what comes in and goes out may have a conjugate bit."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(24, 24, dtype=torch.cdouble) / 8 for _ in range(6))

    def forward(self, z):
        for weight in self.weights:
            z = torch.tanh(functional.linear(z.conj(), weight.conj()))
        return z.conj()


def test_conjugates_come_in_go_out_and_have_gradients():
    def run(module, x):
        out = module(torch.complex(x, x.sin()).to(torch.cdouble).conj())
        assert type(out) is torch.Tensor and out.is_conj() and not out.detach().clone().is_conj()
        loss = torch.view_as_real(out.resolve_conj()).square().mean() + out.imag.mean()
        loss.backward()
        return loss

    both(Layers, run)


def test_inside_and_outside_agree_on_the_bits():
    seen = []

    def between(module, x):
        turned = pair(x).conj()
        seen.append(
            [turned.is_conj(), turned.imag.is_neg(), turned.real.is_neg(), turned.conj().is_conj(), turned.sum().item()]
        )
        return x * turned.imag

    plain = Spectral(between)
    wrapped = remat.exec.dtr(copy.deepcopy(plain), "1MiB")
    step(plain, X)
    step(wrapped, X)
    assert seen[:4] == seen[4:] and seen[0][:4] == [True, True, False, False]
