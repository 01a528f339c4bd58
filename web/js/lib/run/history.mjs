// @ts-check
/** A run's metrics.jsonl: curves, markers, counts, the newest facts. Pure. */

import { median } from "./format.mjs";
import { lookOf } from "./looks.mjs";
import { Series } from "./series.mjs";

/**
 * A line of metrics.jsonl. Unknown keys and kinds of lines, from later versions, are ignored.
 * @typedef {{ event: string, step: number, steps?: number, loss?: number | null, lr?: number | null,
 *   grad_norm?: number | null, seconds?: number | null, seconds_left?: number | null, beside_left?: number | null, expert?: string, timestep_mean?: number | null, prior_loss?: number | null,
 *   eval_loss?: number | null, tflops?: number | null, tokens?: number, clips?: number, sample_id?: string, stage?: string, held_out?: boolean | null,
 *   per_timestep?: Record<string, number | null>, best?: number | null, why?: string, overfits_from?: number | null,
 *   slowest_rank?: number | null, updates?: Record<string, number | null>, kind?: string, text?: string, modules?: number | null, passed_over?: number,
 *   memory?: import("../page/routes.mjs").Summary["memory"] }} Line
 * @typedef {{ best: number | null, why: string, overfitsFrom: number | null }} Suggestion
 *   the suggested saved step, the reason, and the step from which the run over-fits
 * @typedef {{ step: number, kind: string, text: string }} Mark a problem, and its step
 * @typedef {{ next: number, records: Line[], more?: boolean, restarted?: boolean }} Answer
 */

export const BINS = 20;
const PACE_STEPS = 20;
const MOST_MARKS = 50;
const LAST_TIMESTEP = 1000;

export class RunHistory {
  constructor() {
    this.clear();
  }

  clear() {
    /** Number of read lines, where the next request starts. */
    this.lines = 0;
    /** Training loss by expert. @type {Map<string, Series>} */
    this.losses = new Map();
    /** Error of the prior preservation clips, by expert. @type {Map<string, Series>} */
    this.priors = new Map();
    /** Evaluation loss by expert. @type {Map<string, Series>} */
    this.evaluations = new Map();
    /** Evaluation loss by timestep. @type {Map<number, Series>} */
    this.levels = new Map();
    /** Whether the evaluation is on held-out clips; null while unknown. @type {boolean | null} */
    this.heldOut = null;
    /** The newest evaluation, if its loss is not a number. @type {{ step: number, expert: string } | null} */
    this.notFinite = null;
    /** @type {Suggestion | null} */
    this.suggestion = null;
    this.saves = new Series();
    this.samples = new Series();
    /** Problems of saved LoRAs, by step. @type {Map<number, import("./looks.mjs").Look>} */
    this.looks = new Map();
    this.skipped = new Series();
    /** Problems, oldest first. @type {Mark[]} */
    this.marks = [];
    /** The newest step line. @type {Line | null} */
    this.newest = null;
    /** Time of all steps; a step trained twice counts twice. @type {import("./stages.mjs").Spent} */
    this.trained = { seconds: 0, count: 0 };
    /** Time of the engine's other stages, in all sessions. @type {Map<string, import("./stages.mjs").Spent>} */
    this.stages = new Map();
    /** Histogram of the drawn timesteps, 20 bins from 0 to 1000. */
    this.timesteps = new Array(BINS).fill(0);
    this.furthest = 0;
    /** @type {number[]} */
    this.pace = [];
  }

  /**
   * Adds a response of the metrics route to a request from line `since`. A response to an older request is dropped. A shorter
   * file means a new run in the same folder.
   * @param {number} since
   * @param {Answer} answer
   * @returns {boolean} whether to request again at once
   */
  take(since, answer) {
    if (since !== this.lines) return true;
    if (answer.restarted || answer.next < since) {
      this.clear();
      return true;
    }
    for (const line of answer.records) this.add(line);
    this.lines = answer.next;
    return Boolean(answer.more);
  }

  /** @param {Line} line */
  add(line) {
    if (!line || !Number.isFinite(line.step)) return;
    if (line.event === "step") this.addStep(line);
    else if (line.event === "evaluated") this.addEvaluation(line);
    else if (line.event === "suggested") this.suggestion = suggestionOf(line);
    else if (line.event === "saved") this.addSave(line);
    else if (line.event === "sample") this.samples.add(line.step, 0);
    else if (line.event === "skipped") this.skipped.add(line.step, 0);
    else if (line.event === "marked") this.addMark(line);
    else if (line.event === "stage_ended") this.addStage(line);
  }

  /** @param {Line} line */
  addStep(line) {
    this.newest = line;
    curve(this.losses, line).add(line.step, line.loss);
    if (Number.isFinite(line.prior_loss)) curve(this.priors, line).add(line.step, line.prior_loss);
    if (Number.isFinite(line.seconds)) {
      this.pace = [...this.pace.slice(1 - PACE_STEPS), Number(line.seconds)];
      spend(this.trained, line.seconds);
    }
    // A step trained again draws the same noise levels again.
    if (line.step > this.furthest && Number.isFinite(line.timestep_mean)) {
      const share = Number(line.timestep_mean) / LAST_TIMESTEP;
      this.timesteps[Math.min(BINS - 1, Math.max(0, Math.floor(share * BINS)))] += 1;
    }
    this.furthest = Math.max(this.furthest, line.step);
  }

  /** @param {Line} line */
  addEvaluation(line) {
    curve(this.evaluations, line).add(line.step, line.eval_loss);
    this.heldOut = typeof line.held_out === "boolean" ? line.held_out : null;
    const of = { step: line.step, expert: String(line.expert ?? "") };
    this.notFinite = Number.isFinite(line.eval_loss) ? null : of;
    for (const [timestep, loss] of Object.entries(line.per_timestep ?? {})) {
      const level = Number(timestep);
      if (!Number.isFinite(level)) continue;
      const series = this.levels.get(level) ?? new Series();
      series.add(line.step, loss);
      this.levels.set(level, series);
    }
  }

  /** @param {Line} line */
  addSave(line) {
    this.saves.add(line.step, 0);
    this.looks.set(line.step, lookOf(line));
  }

  /** Adds a problem; a resumed session may repeat it. @param {Line} line */
  addMark({ step, kind, text }) {
    const [of, said] = [String(kind ?? ""), String(text ?? "")];
    if (this.marks.some((one) => one.step === step && one.text === said)) return;
    this.marks = [...this.marks, { step, kind: of, text: said }].slice(-MOST_MARKS);
  }

  /** @param {Line} line */
  addStage({ stage, seconds }) {
    const name = String(stage ?? "");
    const spent = this.stages.get(name) ?? { seconds: 0, count: 0 };
    if (spend(spent, seconds)) this.stages.set(name, spent);
  }

  /** Number of steps with a training loss. */
  get points() {
    return [...this.losses.values()].reduce((sum, series) => sum + series.length, 0);
  }

  /** Median seconds of the last twenty steps. @returns {number | null} */
  get secondsPerStep() {
    return median(this.pace);
  }

  /** The newest finite evaluation loss of the expert `evaluated`. @returns {number | null} */
  get evaluation() {
    return this.evaluations.get(this.evaluated)?.points.at(-1)?.value ?? null;
  }

  /** The last evaluated expert; empty for a run of one model. @returns {string} */
  get evaluated() {
    return this.notFinite?.expert ?? newestName(this.evaluations);
  }

  /** The evaluated experts; empty for a run of one model. @returns {string[]} */
  get judged() {
    return [...this.evaluations.keys()].filter(Boolean);
  }

  /** The newest error of prior preservation clips; not every step has such a clip. @returns {number | null} */
  get prior() {
    return newestOf(this.priors);
  }
}

/** @param {Map<string, Series>} curves @returns {number | null} */
function newestOf(curves) {
  return curves.get(newestName(curves))?.points.at(-1)?.value ?? null;
}

/** The name of the curve with the newest point; of equally new ones, the curve that began later. @param {Map<string, Series>} curves @returns {string} */
function newestName(curves) {
  const reached = (/** @type {[string, Series]} */ [, series]) =>
    series.points.at(-1)?.step ?? Number.NEGATIVE_INFINITY;
  return [...curves].sort((a, b) => reached(a) - reached(b)).at(-1)?.[0] ?? "";
}

/** @param {Line} line @returns {Suggestion} */
function suggestionOf({ best, why, overfits_from: from }) {
  const step = (/** @type {unknown} */ value) => (Number.isInteger(value) ? Number(value) : null);
  return {
    best: step(best),
    why: typeof why === "string" ? why : "",
    overfitsFrom: step(from),
  };
}

/**
 * @param {import("./stages.mjs").Spent} spent
 * @param {unknown} seconds
 * @returns {boolean} whether the value is a valid time
 */
function spend(spent, seconds) {
  if (typeof seconds !== "number" || !(seconds >= 0) || !Number.isFinite(seconds)) return false;
  spent.seconds += seconds;
  spent.count += 1;
  return true;
}

/**
 * The curve of a name, created at the first use.
 * @param {Map<string, Series>} curves
 * @param {Line} line
 * @returns {Series}
 */
function curve(curves, line) {
  const name = String(line.expert ?? "");
  const found = curves.get(name) ?? new Series();
  curves.set(name, found);
  return found;
}
