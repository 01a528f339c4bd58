"""Settings of the objective: the distribution of noise levels, and the loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..config import Config, setting
from ..errors import ConfigError
from ..flow import LOSS_WEIGHTINGS, LOSSES, TIMESTEP_RANGES, TIMESTEP_SAMPLINGS

objective_setting = partial(setting, group="objective")


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """The part of the train settings on noise levels and loss."""

    timestep_sampling: str = objective_setting(
        "shift",
        "Distribution of the noise levels (timesteps) that are trained. shift: logistic-normal, then the training "
        "shift. sigmoid: without the shift. uniform: all equally. flux_shift, qwen_shift: shift by clip size. logsnr: "
        "normal log signal-to-noise ratio. mode: as in Stable Diffusion 3. beta: more of the middle. Change it to "
        "match settings of another trainer.",
        choices=TIMESTEP_SAMPLINGS,
        counts="always",
    )
    discrete_flow_shift: float = objective_setting(
        0.0,
        "Training shift: a higher value trains more on high noise. 0 = the model's own: 12 for 2.2 T2V-A14B, 5 for 2.2 "
        "I2V-A14B and 2.2 TI2V-5B, 3 for the others. The sampling shift is a separate setting. Raise it for motion and "
        "layout, lower it for fine detail.",
        within=(0.0, 1000.0),
        counts="always",
    )
    """0 = `WanVariant.training_shift`"""
    sigmoid_scale: float = objective_setting(
        1.0,
        "For timestep_sampling sigmoid, shift, flux_shift and qwen_shift: width of the logistic-normal distribution. "
        "Raise it above 1.0 to train very low and very high noise more.",
        within=(0.01, 100.0),
        counts="always",
    )
    logit_mean: float = objective_setting(
        0.0,
        "For timestep_sampling logsnr: mean of the log signal-to-noise ratio. 0 = as much signal as noise. Lower it to "
        "train more high noise.",
        within=(-20.0, 20.0),
        step=0.1,
    )
    logit_std: float = objective_setting(
        1.0,
        "For timestep_sampling logsnr: standard deviation of the log signal-to-noise ratio. Raise it to spread the "
        "noise levels further.",
        within=(0.01, 20.0),
        step=0.1,
    )
    mode_scale: float = objective_setting(
        1.29,
        "For timestep_sampling mode: how strongly middle noise levels are favoured; below 0, the lowest and highest "
        "are. Raise it to train middle levels more.",
        within=(-1.0, 1.75),
    )
    min_timestep: float = objective_setting(
        0.0,
        "Lowest noise level (0 to 1000) that is trained; a random level below it is drawn again. 0 = the model's "
        "own. Raise it to omit fine detail.",
        within=(0.0, 999.0),
        step=1.0,
    )
    max_timestep: float = objective_setting(
        1000.0,
        "Highest noise level (0 to 1000) that is trained; a random level above it is drawn again. 1000 = the model's "
        "own. Lower it to omit motion and layout.",
        within=(1.0, 1000.0),
        step=1.0,
    )
    loss_type: str = objective_setting(
        "mse",
        "Loss function. mse: squared error. l1: absolute error. huber: squared up to huber_delta, absolute above. "
        "pseudo_huber: the same as one smooth curve. Change it when a few bad clips dominate the loss.",
        choices=LOSSES,
    )
    huber_delta: float = objective_setting(
        1.0,
        "Error up to which huber and pseudo_huber use the square. Lower it to reduce the effect of outliers.",
        within=(1e-6, 1000.0),
        offered=(0.001, 1000.0),
    )
    loss_weighting: str = objective_setting(
        "none",
        "Weight of each noise level in the loss. none: all equal. bell: the middle most. sigma_sqrt: low noise far "
        "more. cosmap: the middle up to twice as much. min_snr: Min-SNR with gamma 5, low and middle noise most. "
        "Change it to match settings of another trainer.",
        choices=LOSS_WEIGHTINGS,
    )
    timestep_range: str = objective_setting(
        "cut",
        "How min_timestep and max_timestep apply. cut: samples outside are drawn again, the others stay unchanged. "
        "rescaled: all samples are squeezed into the range. Choose rescaled to keep the shape of the distribution.",
        choices=TIMESTEP_RANGES,
    )
    timestep_list: tuple[float, ...] = objective_setting(
        (),
        "Train only these noise levels (0 to 1000), equally often, such as 1000, 750, 500, 250. Empty: "
        "timestep_sampling is used. Set it for a LoRA of a model that samples in a few steps.",
    )
    guidance_target: float = objective_setting(
        1.0,
        "Guidance scale of the training target, for a distilled base model (4-step, lightx2v, turbo) that is sampled "
        "at cfg 1. The target is moved away from the model's prediction for the empty prompt, so that the base stays "
        "distilled. A step needs one more forward pass. 1 = off. Set it to 3 or 4 when you train on a distilled "
        "model.",
        within=(1.0, 20.0),
        step=0.5,
    )
    timestep_strata: int = objective_setting(
        0,
        "Stratified sampling: noise levels of this many consecutive clips are spread evenly over the distribution, one "
        "per equal part. Use the clips per optimizer step, or per epoch. 0 = each is drawn independently. Set it when "
        "the loss is noisy.",
        within=(0, 1_000_000),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_timestep >= self.max_timestep:
            raise ConfigError(
                f"min_timestep {self.min_timestep:g} is not below max_timestep {self.max_timestep:g}, so nothing would "
                "be trained. Set them to 0 and 1000 for all noise levels."
            )
        for timestep in self.timestep_list:
            if not 0 <= timestep <= 1000:
                raise ConfigError(f"timestep_list has {timestep:g}, which is no noise level. Use 0 to 1000.")
        if 0 < self.discrete_flow_shift < 0.01:
            raise ConfigError(f"discrete_flow_shift {self.discrete_flow_shift} is too small. Use 0 or 0.01 to 1000.")

    def narrowed(self, sigma_range: tuple[float, float]) -> tuple[float, float]:
        """Returns the trained part of a model's sigma range. Raises ConfigError if there is none."""
        low, high = max(sigma_range[0], self.min_timestep / 1000), min(sigma_range[1], self.max_timestep / 1000)
        if low >= high:
            model_low, model_high = (1000 * sigma for sigma in sigma_range)
            raise ConfigError(
                f"min_timestep {self.min_timestep:g} to max_timestep {self.max_timestep:g} lies outside of what this "
                f"model is trained on, {model_low:g} to {model_high:g}. Set both inside it, or to 0 and 1000."
            )
        return low, high
