// @ts-check
/** Which part of the work is under way, and how long each has taken as far as this page has seen. Pure. */

/** The chips, and the stages of the engine that belong to each. */
export const STAGES = Object.freeze({
  Load: ["load"],
  Cache: ["cache"],
  Train: ["train"],
  Validate: ["evaluate", "sample"],
  Save: ["save"],
});

/** @param {string | undefined} stage @returns {string | null} name of its chip */
export function chipOf(stage) {
  return Object.entries(STAGES).find(([, stages]) => stage && stages.includes(stage))?.[0] ?? null;
}

export class StageClock {
  constructor() {
    /** @type {Map<string, number>} */
    this.spent = new Map();
    /** @type {string | null} */
    this.active = null;
    this.since = 0;
  }

  /**
   * The work is now at `chip`, or nowhere.
   * @param {string | null} chip
   * @param {number} now milliseconds
   */
  enter(chip, now) {
    if (chip === this.active) return;
    if (this.active) this.spent.set(this.active, this.seconds(this.active, now) ?? 0);
    this.active = chip;
    this.since = now;
  }

  /**
   * @param {string} chip
   * @param {number} now milliseconds
   * @returns {number | null} seconds, or null when this page has not seen the stage
   */
  seconds(chip, now) {
    const running = chip === this.active ? (now - this.since) / 1000 : null;
    const before = this.spent.get(chip);
    return running === null ? (before ?? null) : running + (before ?? 0);
  }
}
