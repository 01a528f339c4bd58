// @ts-check
/**
 * How often each timestep is trained, in closed form: the distribution `draw_sigma` of wan_core/flow.py draws from. Noise
 * levels (sigma) go from 0 to 1, timesteps are a thousand times that. Pure.
 */

/**
 * Parameters of the distribution. `low`, `high`: sigma range of the expert; draws outside are repeated. `asModel`: the
 * shift is the model's; its value says whether the model is known. `narrowed`: the settings allow a smaller range than the
 * model. `mean`, `deviation`: of logsnr. `mode`: scale of mode. `rescaled`: draws are scaled into the range instead of
 * repeated. `levels`: ascending list of the only trained noise levels.
 * @typedef {{ sampling: string, shift: number, scale: number, low: number, high: number, asModel?: boolean,
 *   narrowed?: boolean, mean?: number, deviation?: number, mode?: number, rescaled?: boolean,
 *   levels?: number[] }} Draw
 */

export const SAMPLINGS = [
  ...["uniform", "sigmoid", "shift", "flux_shift", "qwen_shift"],
  ...["logsnr", "mode", "beta"],
];
/** Samplings that read discrete_flow_shift, and samplings whose shift depends on the clip's size. */
export const SHIFTED = ["uniform", "shift"];
const BY_SIZE = { flux_shift: [1.15, 4096], qwen_shift: [0.9, 8192] };
/** Samplings that read sigmoid_scale. */
export const SCALED = ["sigmoid", "shift", ...Object.keys(BY_SIZE)];
/** The engine refuses settings with a smaller share of draws inside the range. */
export const ALMOST_NOTHING = 1e-5;
// Beyond this many deviations a double cannot distinguish the share from 0 or 1.
const FARTHEST = 8;
const HALVINGS = 40;

/**
 * Share of a standard normal distribution below `x`, to about 1e-15.
 * @param {number} x
 */
export function normalBelow(x) {
  if (x <= -FARTHEST) return 0;
  if (x >= FARTHEST) return 1;
  let sum = x;
  let term = x;
  for (let odd = 3; Math.abs(term) > 1e-17 && odd < 600; odd += 2) {
    term *= (x * x) / odd;
    sum += term;
  }
  return 0.5 + (sum / Math.sqrt(2 * Math.PI)) * Math.exp((-x * x) / 2);
}

/**
 * Cumulative distribution: share of draws at or below a noise level, before the range applies.
 * @param {Draw} draw
 * @param {number} sigma
 */
export function below(draw, sigma) {
  const { sampling, shift, scale } = draw;
  if (sigma <= 0) return 0;
  if (sigma >= 1) return 1;
  if (sampling === "beta") return sigma ** 2 * (3 - 2 * sigma);
  if (sampling === "mode") return modeBelow(draw.mode ?? 1.29, sigma);
  if (sampling === "logsnr") {
    return normalBelow(
      (2 * Math.log(sigma / (1 - sigma)) + (draw.mean ?? 0)) / (draw.deviation ?? 1),
    );
  }
  if (sampling === "uniform") return sigma / (shift - (shift - 1) * sigma);
  const moved = sampling === "sigmoid" ? 0 : Math.log(shift);
  return normalBelow((Math.log(sigma / (1 - sigma)) - moved) / scale);
}

/**
 * The same for the sampling mode, found by bisection: its draw is a decreasing function without a closed inverse.
 * @param {number} scale
 * @param {number} sigma
 */
function modeBelow(scale, sigma) {
  const made = (/** @type {number} */ part) =>
    1 - part - scale * (Math.cos((Math.PI * part) / 2) ** 2 - 1 + part);
  let [low, high] = [0, 1];
  for (let turn = 0; turn < HALVINGS; turn += 1) {
    const middle = (low + high) / 2;
    if (made(middle) > sigma) low = middle;
    else high = middle;
  }
  return 1 - (low + high) / 2;
}

/**
 * The shift of a sampling that depends on the clip size; null for other samplings.
 * @param {string} sampling
 * @param {number} width in pixels
 * @param {number} height in pixels
 */
export function shiftBySize(sampling, width, height) {
  const known = /** @type {Record<string, number[]>} */ (BY_SIZE)[sampling];
  if (!known) return null;
  const [highest, most] = known;
  const tokens = (width / 16) * (height / 16);
  return Math.exp(0.5 + ((highest - 0.5) * (tokens - 256)) / (most - 256));
}

/**
 * Share of draws inside the range.
 * @param {Draw} draw
 */
export function kept(draw) {
  if (draw.levels) return Math.sign(draw.levels.length);
  if (draw.rescaled) return 1;
  return below(draw, draw.high) - below(draw, draw.low);
}

/**
 * Share of the trained noise levels from one to another.
 * @param {Draw} draw
 * @param {number} from
 * @param {number} to
 */
export function share(draw, from, to) {
  const { low, high, levels } = draw;
  if (levels) {
    const inside = levels.filter((level) => (level > from || from === 0) && level <= to);
    return inside.length / levels.length;
  }
  const inside = (/** @type {number} */ sigma) => Math.min(Math.max(sigma, low), high);
  if (draw.rescaled) {
    const whole = (/** @type {number} */ sigma) => (inside(sigma) - low) / (high - low);
    return below(draw, whole(to)) - below(draw, whole(from));
  }
  return (below(draw, inside(to)) - below(draw, inside(from))) / kept(draw);
}

/**
 * Quantile: the noise level below which the given share of the trained levels lies.
 * @param {Draw} draw
 * @param {number} part 0 to 1
 */
export function quantile(draw, part) {
  let [low, high] = [draw.low, draw.high];
  for (let turn = 0; turn < HALVINGS; turn += 1) {
    const middle = (low + high) / 2;
    if (share(draw, draw.low, middle) < part) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/**
 * Mean density in each of `count` equal bins from 0 to 1; the uniform distribution has density 1.
 * @param {Draw} draw
 * @param {number} count
 */
export function densities(draw, count) {
  return Array.from(
    { length: count },
    (_, bin) => share(draw, bin / count, (bin + 1) / count) * count,
  );
}
