// @ts-check
/** When a run's summary takes the place of what the status line says. Pure. */

/**
 * Where the text of the line came from: nowhere yet; a run's summary; an error in reading it; the progress of a run that
 * goes on; or the last word on it, which says more than the summary does.
 * @typedef {"" | "summary" | "error" | "progress" | "end"} Origin
 */

const ENDED = ["done", "stopped", "failed"];

/** @param {string | undefined} state of a run, as messages and summaries say it */
export function hasEnded(state) {
  return ENDED.includes(state ?? "");
}

/**
 * Whether the summary is newer than the line: a line of progress is the newest there is for as long as the run goes on.
 * @param {Origin} origin of the line
 * @param {{ live?: boolean, state?: string }} summary
 */
export function isOld(origin, { live, state }) {
  if (origin === "end") return false;
  return origin !== "progress" || !(live || state === "running");
}
