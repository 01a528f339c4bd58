"""RoPE tables: exact, kept for a few grids, never fake and never of inference mode."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from wan_core.kernels.rope import Span, rope_of, rotate

CPU = torch.device("cpu")


def table(frames: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return rope_of((Span((frames, 3, 2)),), 28, dtype=dtype, device=CPU)


def test_the_same_grid_gives_the_same_tensors() -> None:
    first = table(5)
    assert all(a is b for a, b in zip(first, table(5), strict=True))
    assert table(5, torch.float64)[0].dtype == torch.float64
    assert table(5)[0] is first[0]


def test_only_the_last_grids_are_kept() -> None:
    first = table(1)
    for frames in range(2, 12):
        table(frames)
    assert table(1)[0] is not first[0]
    torch.testing.assert_close(table(1), first, atol=0, rtol=0)


def test_a_grid_in_use_is_kept() -> None:
    used = table(1)
    for frames in range(2, 22):
        table(frames)
        assert table(1)[0] is used[0]


def test_a_table_first_made_under_inference_mode_takes_part_in_a_backward_pass() -> None:
    with torch.inference_mode():
        cos, sin = rope_of((Span((7, 1, 2)),), 28, dtype=torch.float32, device=CPU)
    x = torch.randn(1, 14, 2, 28, requires_grad=True)
    rotate(x, cos, sin).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach(), atol=1e-5, rtol=0)  # a rotation keeps lengths


def test_fake_tables_do_not_outlive_their_mode() -> None:
    with FakeTensorMode():
        assert isinstance(rope_of((Span((9, 1, 1)),), 28, dtype=torch.float32, device=CPU)[0], FakeTensor)
    real = rope_of((Span((9, 1, 1)),), 28, dtype=torch.float32, device=CPU)[0]
    assert type(real) is torch.Tensor
    with FakeTensorMode():
        assert isinstance(rope_of((Span((9, 1, 1)),), 28, dtype=torch.float32, device=CPU)[0], FakeTensor)


def test_a_table_without_values_is_made_each_time() -> None:
    first, second = (
        rope_of((Span((9, 1, 1)),), 28, dtype=torch.float32, device=torch.device("meta"))[0] for _ in range(2)
    )
    assert first is not second


def test_the_table_is_float64_rounded_once() -> None:
    """Position 1000 of the fastest pair: a float32 angle would be off by 3e-5."""
    cos, _ = rope_of((Span((1001, 1, 1)),), 28, dtype=torch.float32, device=CPU)
    assert cos[1000, 0, 0] == torch.tensor(1000.0, dtype=torch.float64).cos().float()


def test_the_rotation_is_the_written_formula_and_its_gradient_turns_back() -> None:
    for dtype in (torch.float32, torch.float64):
        cos, sin = table(5, dtype)
        x = torch.randn(2, 30, 3, 28, generator=torch.Generator().manual_seed(0)).requires_grad_()
        rotated = rotate(x, cos, sin)
        even, odd = x.detach().to(dtype)[..., 0::2], x.detach().to(dtype)[..., 1::2]
        torch.testing.assert_close(rotated[..., 0::2], (even * cos - odd * sin).float(), atol=1e-6, rtol=0)
        torch.testing.assert_close(rotated[..., 1::2], (even * sin + odd * cos).float(), atol=1e-6, rtol=0)
        rotated.backward(rotated.detach())
        torch.testing.assert_close(x.grad, x.detach(), atol=2e-6, rtol=0)
