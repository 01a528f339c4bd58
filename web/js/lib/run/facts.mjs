// @ts-check
/** Texts and numbers of a run on the panel, from its summary and its history. Pure. */

import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { clock, gib, known, secondsLeft, short } from "./format.mjs";
import { expertName, stateName } from "./names.mjs";
import { stepOf } from "./trouble.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./history.mjs").RunHistory} RunHistory
 * @typedef {{ name: string, title: string, value: string }} Fact
 * @typedef {{ device: string, title?: string, text: string, now: number | null, peak: number | null, predicted: number | null }} MemoryBar
 *   `now`, `peak`, `predicted`: fractions of the bar's length, 0 to 1
 */

/**
 * Numbers of a run, without unknown ones.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @returns {Fact[]}
 */
export function facts(history, summary) {
  const line = history.newest;
  const failedAt = summary?.state === "failed" ? stepOf(summary) : 0; // counts skipped steps, which have no line
  const step = failedAt > (line?.step ?? 0) ? failedAt : (line?.step ?? summary?.step);
  const steps = line?.steps ?? summary?.steps;
  const pace = history.secondsPerStep ?? summary?.seconds_per_step;
  const running = !summary || summary.state === "running";
  /** @type {[string, string, string][]} */
  const all = [
    [
      t("step"),
      t("Optimizer steps done and requested"),
      known(step) && known(steps) ? `${step} / ${steps}` : "",
    ],
    [t("epoch"), t("Passes over the clips, done and requested"), epochs(line)],
    ["s/it", t("Median seconds of the last 20 steps"), short(pace)],
    [
      t("left"),
      t("Time left at this pace"),
      running && step !== steps
        ? clock(secondsLeft(pace, step, steps, line?.seconds_left, line?.beside_left))
        : "",
    ],
    [
      t("expert"),
      t("Which of the two models trains now"),
      history.losses.size > 1 || summary?.expert === "both" ? expertName(line?.expert ?? "") : "",
    ],
    [t("loss"), t("Training loss of the newest step"), short(line?.loss, 4)],
    [...evaluationName(history, summary), evaluationValue(history, summary, 4)],
    [
      t("prior"),
      t(
        "Prior preservation: how far the newest preservation clips are from the base model's prediction",
      ),
      short(history.prior, 4),
    ],
    ["lr", t("Learning rate"), running ? short(line?.lr) : ""],
    [
      t("tokens/s"),
      t("Tokens processed per second in the newest step"),
      rate(line?.tokens, line?.seconds),
    ],
    [
      t("skipped"),
      t("Steps whose loss or gradients were not finite"),
      history.skipped.length ? `${history.skipped.length}` : "",
    ],
  ];
  return all.filter(([, , value]) => value).map(([name, title, value]) => ({ name, title, value }));
}

/**
 * Epochs so far, and at the end of the run; of a pair, the end is unknown. The end is shown after a tenth of the first epoch,
 * when it is exact to a digit.
 * @param {Record<string, any> | null | undefined} line
 */
function epochs(line) {
  if (!known(line?.epoch) || line.epoch <= 0) return "";
  const whole = (line.epoch * line.steps) / line.step;
  const sure = line.epoch >= 0.1 && !line.expert && known(whole);
  return sure ? `${passes(line.epoch)} / ${passes(whole)}` : passes(line.epoch);
}

/** @param {number} value */
function passes(value) {
  return value.toFixed(value < 0.1 ? 3 : 1).replace(/[.]0$/, "");
}

/**
 * The newest evaluation loss; NaN together with the last finite value.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @param {number} digits
 */
function evaluationValue(history, summary, digits) {
  const loss = short(history.evaluation ?? summary?.eval_loss, digits);
  const step = history.notFinite?.step ?? (loss ? null : summary?.eval_step);
  if (!known(step)) return loss;
  return loss
    ? t("not finite at step {step}, before {loss}", { step, loss })
    : t("not finite at step {step}", { step });
}

/**
 * Label and clips of the evaluation loss.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @returns {[string, string]}
 */
function evaluationName(history, summary) {
  const [name, title] = evaluationOf(history, summary);
  const expert = expertName(history.evaluated || (summary?.eval_expert ?? ""));
  if (!expert) return [name, title];
  const alone = t("Of this expert only: a suggested step uses the mean of both.");
  return [`${name}, ${t("{expert} expert", { expert })}`, `${title}\n${alone}`];
}

/**
 * The same, independent of the expert.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @returns {[string, string]}
 */
function evaluationOf(history, summary) {
  const heldOut = history.heldOut ?? summary?.eval_held_out;
  if (heldOut)
    return [t("eval"), t("Loss on held-out clips, with the same noise and timesteps each time")];
  if (heldOut === false)
    return [
      t("eval, training clips"),
      t("Loss on training clips with the same noise each time: no clips are held out."),
    ];
  return [t("eval"), t("Loss on fixed clips, noise and timesteps")];
}

/**
 * Number per second; empty for a line of an older version.
 * @param {any} count
 * @param {any} seconds
 */
function rate(count, seconds) {
  const value = count / seconds;
  if (!(count > 0 && seconds > 0)) return "";
  return value < 1e5 ? short(value) : String(Number(value.toPrecision(3)));
}

/**
 * Memory by device in the newest step; without current values for an ended run.
 * @param {RunHistory} history
 * @param {Summary | null} summary
 * @returns {Summary["memory"]}
 */
export function memoryOf(history, summary) {
  const found = history.newest?.memory;
  if (!found || typeof found !== "object" || !Object.keys(found).length) return summary?.memory;
  if (!summary || summary.state === "running") return found;
  return Object.fromEntries(
    Object.entries(found).map(([device, bytes]) => [device, { ...bytes, now: null }]),
  );
}

/**
 * A bar per device: current, peak and predicted memory as fractions of the device's memory; on a common scale if that is
 * unknown.
 * @param {Summary["memory"]} memory
 * @returns {MemoryBar[]}
 */
export function memoryBars(memory) {
  const devices = Object.entries(memory ?? {}).filter(([, bytes]) => highest(bytes) > 0);
  const most = Math.max(...devices.map(([, bytes]) => highest(bytes)));
  const scaled = devices.every(([, bytes]) => known(bytes.total) && bytes.total > 0);
  return devices.map(([device, bytes]) => {
    const whole = scaled ? Math.max(bytes.total ?? 0, highest(bytes)) : most * 1.05;
    const share = (/** @type {number | null | undefined} */ value) =>
      known(value) ? value / whole : null;
    const words = [
      known(bytes.now) ? t("{size} now", { size: gib(bytes.now) }) : "",
      known(bytes.peak) ? t("{size} peak", { size: gib(bytes.peak) }) : "",
      known(bytes.predicted) ? t("{size} predicted", { size: gib(bytes.predicted) }) : "",
      scaled ? t("of {size}", { size: gib(bytes.total) }) : "",
    ];
    const text = words.filter(Boolean).join(" · ");
    return {
      device,
      text,
      now: share(bytes.now),
      peak: share(bytes.peak),
      predicted: share(bytes.predicted),
    };
  });
}

/** @param {import("../page/routes.mjs").Memory | null | undefined} bytes */
function highest(bytes) {
  return Math.max(...[bytes?.now, bytes?.peak, bytes?.predicted].filter(known), 0);
}

/**
 * The state of a run in one line.
 * @param {{ state: string, step: number, steps: number, reason?: string }} summary
 */
export function stateText({ state, step, steps, reason }) {
  // The box below shows step and reason (run/trouble.mjs).
  if (state === "failed") return stateName(state);
  const text = t("{state}: step {step} of {steps}", { state: stateName(state), step, steps });
  return reason && state !== "done" ? `${text} (${told(reason)})` : text;
}

/** Describes the chart, for screen readers. @param {RunHistory} history */
export function chartText(history) {
  const parts = [...history.losses.entries()].map(([expert, series]) =>
    curveText(expertName(expert), series.points),
  );
  const evaluation = evaluationValue(history, null, 3);
  if (evaluation) parts.push(t("evaluation loss {loss}", { loss: evaluation }));
  if (history.prior !== null)
    parts.push(t("prior preservation {loss}", { loss: short(history.prior) }));
  const { best, overfitsFrom } = history.suggestion ?? {};
  if (known(best)) parts.push(t("step {step} is suggested", { step: best }));
  if (known(overfitsFrom)) parts.push(t("over-fits after step {step}", { step: overfitsFrom }));
  const saves = history.saves.length;
  if (saves) parts.push(counted(saves, "1 saved step", "{n} saved steps"));
  return parts.filter(Boolean).join(", ");
}

/**
 * @param {string} expert empty without one
 * @param {import("./series.mjs").Point[]} points
 */
function curveText(expert, points) {
  const [first, last] = [points[0], points[points.length - 1]];
  if (!first) return "";
  const values = {
    expert,
    from: short(first.value),
    first: first.step,
    to: short(last.value),
    last: last.step,
  };
  return expert
    ? t("Training loss of {expert} from {from} at step {first} to {to} at step {last}", values)
    : t("Training loss from {from} at step {first} to {to} at step {last}", values);
}
