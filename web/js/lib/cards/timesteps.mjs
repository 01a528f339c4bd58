// @ts-check
/** The distribution of timesteps from Wan Train Settings and connected nodes, in numbers and words. Pure. */

import { t } from "../page/words.mjs";
import { known } from "../run/format.mjs";
import { changedSince } from "./card_facts.mjs";
import {
  ALMOST_NOTHING,
  kept,
  quantile,
  SAMPLINGS,
  SCALED,
  SHIFTED,
  share,
  shiftBySize,
} from "./density.mjs";

/**
 * @typedef {import("./density.mjs").Draw} Draw
 * @typedef {{ boundary: number | null, expert: string | null, shift: number | null }} Model known facts of the model:
 *   sigma between the experts, and the training shift for the setting 0
 * @typedef {{ expert: string, model: Model | null }} Trainer a Train Wan LoRA node: its `expert`, and its model
 * @typedef {{ low: number, high: number, boundary: number | null, open: boolean, shift: number | null }} Range
 *   `open`: the range of the requested expert is not known yet; `shift`: the model's, or null
 */

const WHOLE = { low: 0, high: 1 };
/** Shift of most models, used while the model is not known. */
const USUAL_SHIFT = 3;
/** Clip size that the curve assumes for shifts by size. */
const USUAL_SIZE = { width: 832, height: 480 };
/** Edges of the quarters that the text describes. */
const QUARTERS = [0, 250, 500, 750, 1000];

/**
 * Sigma between the two experts of a model; null for a single model.
 * @param {string} variant as Load Wan Model names it
 */
export function boundaryOf(variant) {
  if (!/ (high|low) noise$/.test(variant)) return null;
  return /^2\.2 (T2V|VACE)/.test(variant) ? 0.875 : 0.9;
}

/** The training shift of a model for the setting 0. @param {string} variant from Load Wan Model */
export function shiftOf(variant) {
  const boundary = boundaryOf(variant);
  if (boundary !== null) return boundary === 0.875 ? 12 : 5;
  return /-5B(-|$)/.test(variant) ? 5 : USUAL_SHIFT;
}

/**
 * The known facts of a model: from its widgets, or from its last run with the same widgets.
 * @param {import("./card_facts.mjs").Widgets} widgets of Load Wan Model
 * @param {import("./card_facts.mjs").Facts | null} facts of its last run
 * @returns {Model | null}
 */
export function modelOf(widgets, facts) {
  if (facts && !changedSince(facts.asked, widgets).length) {
    const { boundary = null, expert = null, training_shift: shift = null } = facts;
    return { boundary, expert, shift };
  }
  const value = (/** @type {string} */ name) =>
    String(widgets.find((widget) => widget.name === name)?.value ?? "");
  const variant = value("variant");
  if (!variant || variant === "auto") return null;
  const pair = !["", "none"].includes(value("low_noise_model"));
  const half = / (high|low) noise$/.exec(variant)?.[1];
  return {
    boundary: boundaryOf(variant),
    expert: half && !pair ? `${half}_noise` : null,
    shift: shiftOf(variant),
  };
}

/**
 * The trained range of noise levels: an expert's, if all trainers train the same expert.
 * @param {Trainer[]} trainers
 * @returns {Range}
 */
export function rangeOf(trainers) {
  const agreed = (/** @type {"boundary" | "shift"} */ fact) => {
    const found = [...new Set(trainers.map((one) => one.model?.[fact] ?? null))];
    return found.length === 1 ? found[0] : null;
  };
  const boundary = agreed("boundary");
  const experts = [...new Set(trainers.map(expertOf))];
  const expert = experts.length === 1 ? experts[0] : "";
  if (!known(boundary)) {
    // If an expert is requested, a file of unknown variant belongs to a pair, whose shift differs from a single model's.
    const open = expert !== "";
    return { ...WHOLE, boundary: null, open, shift: open ? null : agreed("shift") };
  }
  const half = { high: { low: boundary, high: 1 }, low: { low: 0, high: boundary } }[expert];
  return { ...(half ?? WHOLE), boundary, open: false, shift: agreed("shift") };
}

/** @param {Trainer} trainer @returns {string} high, low or empty */
function expertOf({ expert, model }) {
  return ["high", "low"].includes(expert) ? expert : (model?.expert?.replace("_noise", "") ?? "");
}

/**
 * The distribution set by a settings node; null while a value is invalid.
 * @param {import("./card_facts.mjs").Widgets} widgets
 * @param {Range} range
 * @returns {Draw | null}
 */
export function drawOf(widgets, { low, high, shift: own }) {
  const value = (/** @type {string} */ name) => widgets.find((one) => one.name === name)?.value;
  const sampling = String(value("timestep_sampling"));
  const asked = Number(value("discrete_flow_shift"));
  const bySize = shiftBySize(sampling, USUAL_SIZE.width, USUAL_SIZE.height);
  const shift = bySize ?? (asked === 0 ? (own ?? USUAL_SHIFT) : asked);
  const number = (/** @type {string} */ name, /** @type {number} */ usual) =>
    Number(value(name) ?? usual);
  const scale = Number(value("sigmoid_scale"));
  const least = Math.max(low, number("min_timestep", 0) / 1000);
  const most = Math.min(high, number("max_timestep", 1000) / 1000);
  const sound = SAMPLINGS.includes(sampling) && shift > 0 && scale > 0 && least < most;
  if (!sound || !known(shift) || !known(scale)) return null;
  const narrowed = least > low || most < high;
  const listed = String(value("timestep_list") ?? "").trim();
  if (listed) {
    const sigmas = listed.split(/[\s,]+/).map((one) => Number(one) / 1000);
    const isIn = (/** @type {number} */ one) =>
      one >= least && (most < 1 ? one < most : one <= most);
    const levels = sigmas.filter(isIn).sort((one, other) => one - other);
    if (!sigmas.every((one) => one >= 0 && one <= 1)) return null;
    return { ...{ sampling, shift, scale, low: least, high: most }, levels };
  }
  return {
    ...{ sampling, shift, scale, low: least, high: most },
    ...(narrowed && value("timestep_range") === "rescaled" && { rescaled: true }),
    ...(asked === 0 && SHIFTED.includes(sampling) && { asModel: known(own) }),
    ...(sampling === "logsnr" && {
      mean: number("logit_mean", 0),
      deviation: number("logit_std", 1),
    }),
    ...(sampling === "mode" && { mode: number("mode_scale", 1.29) }),
    ...(narrowed && { narrowed }),
  };
}

/** Whether the engine accepts the settings: enough draws lie inside the range. @param {Draw} draw */
export function drawable(draw) {
  return kept(draw) >= ALMOST_NOTHING;
}

/** @param {number} part @returns {string} a share in per cent */
export function percent(part) {
  const value = 100 * part;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** @param {Draw} draw @param {number} part @returns {number} quantile, as a timestep */
export function timestep(draw, part) {
  return Math.round(1000 * quantile(draw, part));
}

/**
 * The share of every quarter.
 * @param {Draw} draw
 * @returns {{ from: number, to: number, part: number }[]}
 */
export function quarters(draw) {
  return QUARTERS.slice(1).map((to, index) => {
    const from = QUARTERS[index];
    return { from, to, part: share(draw, from / 1000, to / 1000) };
  });
}

/**
 * Describes the curve in sentences, also for screen readers.
 * @param {Draw} draw
 * @param {Range} range
 * @returns {string[]}
 */
export function sentences(draw, { boundary, open }) {
  const cut = draw.low > 0 || draw.high < 1;
  const [low, high] = [Math.round(1000 * draw.low), Math.round(1000 * draw.high)];
  if (draw.levels) {
    return [
      draw.levels.length
        ? t("Only listed timesteps from {low} to {high} are trained, equally often.", { low, high })
        : t("No listed timestep is within {low} to {high}, which is trained here.", { low, high }),
    ];
  }
  if (!drawable(draw)) {
    return [
      t("Almost no drawn timestep is within {low} to {high}: choose uniform, or another shift.", {
        low,
        high,
      }),
    ];
  }
  const [first, middle, last] = [0.25, 0.5, 0.75].map((part) => timestep(draw, part));
  const said = [
    t("Half of the training is between timesteps {first} and {last}; the median is {middle}.", {
      first,
      middle,
      last,
    }),
  ];
  if (draw.rescaled) {
    said.push(t("All drawn timesteps are scaled into {low} to {high}.", { low, high }));
  } else if (cut) {
    const part = percent(kept(draw));
    const numbers = { low, high, part };
    said.push(
      draw.narrowed
        ? t(
            "Timesteps {low} to {high} are trained: {part} of the draws; the others are drawn again.",
            numbers,
          )
        : t(
            "This expert trains {low} to {high}: {part} of the draws; the others are drawn again.",
            numbers,
          ),
    );
  } else if (boundary !== null) {
    said.push(
      t("The boundary between the experts of this model is timestep {timestep}.", {
        timestep: Math.round(1000 * boundary),
      }),
    );
  } else if (open) {
    said.push(
      t(
        "The range of this expert is known after Load Wan Model has run; until then the curve shows all timesteps.",
      ),
    );
  }
  if (draw.asModel !== undefined) {
    const { shift } = draw;
    said.push(
      draw.asModel
        ? t("discrete_flow_shift 0 means the model's shift: {shift}.", { shift })
        : t(
            "discrete_flow_shift 0 means the model's shift, which is known after Load Wan Model has run; this curve uses {shift}.",
            { shift },
          ),
    );
  }
  const { sampling } = draw;
  if (shiftBySize(sampling, 1, 1) !== null)
    said.push(
      t(
        "The shift depends on the size of each clip; this curve is for {width}x{height}.",
        USUAL_SIZE,
      ),
    );
  if (!SHIFTED.includes(sampling))
    said.push(t("{sampling} does not use discrete_flow_shift.", { sampling }));
  if (!SCALED.includes(sampling))
    said.push(t("{sampling} does not use sigmoid_scale.", { sampling }));
  return said;
}

/**
 * Text about the timestep under the mouse pointer.
 * @param {Draw} draw
 * @param {number} at a timestep
 */
export function readingAt(draw, at) {
  return t("{part} of the training is below timestep {at}", {
    part: percent(share(draw, 0, at / 1000)),
    at,
  });
}
