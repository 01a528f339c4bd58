// @ts-check
/** What the panel says about a run in words and numbers, from its summary and its history. Pure. */

import { clock, gib, known, secondsLeft, short } from "./format.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./history.mjs").RunHistory} RunHistory
 * @typedef {{ name: string, title: string, value: string }} Fact
 * @typedef {{ device: string, text: string, now: number | null, peak: number | null, predicted: number | null }} MemoryBar
 *   shares of the bar's length, 0 to 1
 */

/**
 * Numbers of a run; a number nobody knows is left out.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @returns {Fact[]}
 */
export function facts(history, summary) {
  const line = history.newest;
  const step = line?.step ?? summary?.step;
  const steps = line?.steps ?? summary?.steps;
  const pace = history.secondsPerStep ?? summary?.seconds_per_step;
  const running = !summary || summary.state === "running";
  /** @type {[string, string, string][]} */
  const all = [
    [
      "step",
      "Optimizer steps done and asked for",
      known(step) && known(steps) ? `${step} / ${steps}` : "",
    ],
    ["s/it", "Median seconds of the last 20 steps", short(pace)],
    [
      "left",
      "Time left at this pace",
      running && step !== steps ? clock(secondsLeft(pace, step, steps)) : "",
    ],
    ["loss", "Training loss of the newest step", short(line?.loss, 4)],
    [
      "eval",
      "Loss on fixed clips, noise and timesteps",
      short(history.evaluation ?? summary?.eval_loss, 4),
    ],
    ["lr", "Learning rate", short(line?.lr)],
    ["grad", "Gradient norm before clipping", short(line?.grad_norm)],
    ["TFLOP/s", "Arithmetic done per second", short(line?.tflops)],
    [
      "skipped",
      "Steps whose loss or gradients were not finite",
      history.skipped.length ? `${history.skipped.length}` : "",
    ],
  ];
  return all.filter(([, , value]) => value).map(([name, title, value]) => ({ name, title, value }));
}

/**
 * A bar per device: what is used now, the highest so far, and what was predicted.
 * @param {Summary["memory"]} memory
 * @returns {MemoryBar[]}
 */
export function memoryBars(memory) {
  return Object.entries(memory ?? {}).flatMap(([device, bytes]) => {
    const most = Math.max(...[bytes?.now, bytes?.peak, bytes?.predicted].filter(known), 0);
    if (!most) return [];
    const share = (/** @type {number | null | undefined} */ value) =>
      known(value) ? value / (most * 1.05) : null;
    const words = [
      known(bytes.now) ? `${gib(bytes.now)} now` : "",
      known(bytes.peak) ? `${gib(bytes.peak)} peak` : "",
      known(bytes.predicted) ? `${gib(bytes.predicted)} predicted` : "",
    ];
    const text = words.filter(Boolean).join(" · ");
    return [
      {
        device,
        text,
        now: share(bytes.now),
        peak: share(bytes.peak),
        predicted: share(bytes.predicted),
      },
    ];
  });
}

/**
 * The state of a run in one line.
 * @param {Summary} summary
 */
export function stateText(summary) {
  const reason = summary.reason && summary.state !== "done" ? ` (${summary.reason})` : "";
  return `${summary.state}: step ${summary.step} of ${summary.steps}${reason}`;
}

/**
 * The chart in words, for who does not see it.
 * @param {RunHistory} history
 */
export function chartText(history) {
  const parts = [...history.losses.entries()].map(([expert, series]) => {
    const points = series.points;
    const [first, last] = [points[0], points[points.length - 1]];
    if (!first) return "";
    const name = expertName(expert) ? ` of ${expertName(expert)}` : "";
    return `Training loss${name} from ${short(first.value)} at step ${first.step} to ${short(last.value)} at step ${last.step}`;
  });
  if (history.evaluation !== null) parts.push(`evaluation loss ${short(history.evaluation)}`);
  if (history.saves.length) parts.push(`${history.saves.length} saves`);
  return parts.filter(Boolean).join(", ");
}

/**
 * An expert as people call it; a model without experts has no name.
 * @param {string} expert
 */
export function expertName(expert) {
  if (expert === "auto" || expert === "single") return "";
  return (
    { high: "high noise", low: "low noise", high_noise: "high noise", low_noise: "low noise" }[
      expert
    ] ?? expert
  );
}
