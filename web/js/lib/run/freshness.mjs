// @ts-check
/** When a run's summary takes the place of what the status line says. Pure. */

/**
 * Where the text of the line came from: nowhere yet; a run's summary; an error in reading it; a message of a run that goes
 * on; the last word on it, which says more than the summary does; or the answer to a button.
 * @typedef {"" | "summary" | "error" | "progress" | "end" | "said"} Origin
 */

const ENDED = ["done", "stopped", "failed"];

/** @param {string | undefined} state of a run, as messages and summaries say it */
export function hasEnded(state) {
  return ENDED.includes(state ?? "");
}

/**
 * Whether the summary is newer than the line. A run that is live sends messages, which are newer still; of one that trains
 * elsewhere or is over there is nothing but the summary.
 * @param {Origin} origin of the line
 * @param {{ live: boolean, isNews: boolean }} summary whether this server trains the run, and whether it says what it did
 *   not say before
 */
export function isOld(origin, { live, isNews }) {
  if (origin === "progress") return !live;
  if (origin === "said") return !live && isNews;
  return origin !== "end";
}
