// @ts-check
/** The current stage, and the time of each: from the run's file, and from messages that are newer. Pure. */

/** The chips in the order of a run, and the stages of the engine that belong to each. */
export const STAGES = Object.freeze({
  Cache: ["cache"],
  Load: ["start", "load"],
  Train: ["train"],
  Validate: ["evaluate", "sample"],
  Save: ["save"],
});

/**
 * @typedef {keyof typeof STAGES} Chip
 * @typedef {{ seconds: number, count: number }} Spent sum of the times in the file, and number of their lines
 */

/** @param {string | null | undefined} stage @returns {string | null} name of its chip */
export function chipOf(stage) {
  return Object.entries(STAGES).find(([, stages]) => stage && stages.includes(stage))?.[0] ?? null;
}

/**
 * The time of a chip in the run's file.
 * @param {{ stages: Map<string, Spent>, trained: Spent }} history
 * @param {string} chip
 * @returns {Spent}
 */
export function recorded(history, chip) {
  if (chip === "Train") return history.trained;
  const found = (STAGES[/** @type {Chip} */ (chip)] ?? []).map((name) => history.stages.get(name));
  return {
    seconds: found.reduce((sum, one) => sum + (one?.seconds ?? 0), 0),
    count: found.reduce((sum, one) => sum + (one?.count ?? 0), 0),
  };
}

/** Measures a stage from its first message until the file has its line; from then on, the file's time counts. */
export class StageClock {
  constructor() {
    /** Measured seconds that the file does not have yet, and when the stage ended. @type {Map<string, { seconds: number, left: number }>} */
    this.waiting = new Map();
    /** Number of a stage's lines at the last read. @type {Map<string, number>} */
    this.lines = new Map();
    /** @type {string | null} */
    this.active = null;
    this.since = 0;
  }

  /**
   * Sets the current stage; null: none.
   * @param {string | null} chip
   * @param {number} now milliseconds
   */
  enter(chip, now) {
    if (chip === this.active) return;
    if (this.active) {
      const seconds = this.unrecorded(this.active, now) ?? 0;
      this.waiting.set(this.active, { seconds, left: now });
    }
    this.active = chip;
    this.since = now;
  }

  /**
   * Seconds of a chip that the file does not have.
   * @param {string} chip
   * @param {number} now milliseconds
   * @returns {number | null} null when this page has not seen the stage
   */
  unrecorded(chip, now) {
    const before = this.waiting.get(chip)?.seconds;
    if (chip !== this.active) return before ?? null;
    return (now - this.since) / 1000 + (before ?? 0);
  }

  /**
   * Called after the file was read. A stage's line is written before the next stage's first message, so the file has all
   * earlier stages; only the worker writes encoding.
   * @param {{ stages: Map<string, Spent>, trained: Spent }} history
   * @param {number} began start of the read, in milliseconds
   */
  read(history, began) {
    for (const [chip, { left }] of this.waiting) {
      const known = recorded(history, chip).count > 0;
      if (known && left <= began && chip !== "Cache" && chip !== this.active)
        this.waiting.delete(chip);
    }
  }

  /**
   * Total seconds of a chip.
   * @param {string} chip
   * @param {Spent} spent time in the file
   * @param {number} now milliseconds
   * @returns {number | null} null if unknown
   */
  seconds(chip, spent, now) {
    if (spent.count !== (this.lines.get(chip) ?? 0)) {
      this.lines.set(chip, spent.count);
      this.waiting.delete(chip);
      if (chip === this.active) this.since = now;
    }
    // The file has a line per step; the current step adds little.
    if (chip === "Train" && spent.count) return spent.seconds;
    const rest = this.unrecorded(chip, now);
    return rest === null && !spent.count ? null : spent.seconds + (rest ?? 0);
  }
}
