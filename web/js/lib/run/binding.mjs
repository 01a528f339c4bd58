// @ts-check
/** Which run a node shows when nothing has told the page yet: after a reload, in a second browser, after a restart. Pure. */

/** @typedef {import("../page/routes.mjs").Summary} Summary */

/**
 * Whether a run's folder is one that `name` leads to: the name itself, or with a number for each change of the job.
 * @param {string} run
 * @param {string} name
 */
export function belongs(run, name) {
  if (run === name) return true;
  return run.startsWith(`${name}_`) && /^\d{3,}$/.test(run.slice(name.length + 1));
}

/**
 * The live run of that name, else the one that was changed last.
 * @param {Summary[]} runs
 * @param {string} name the node's run_name
 * @returns {Summary | null}
 */
export function runOfNode(runs, name) {
  const mine = runs.filter((run) => belongs(String(run.id), name));
  const order = (/** @type {Summary} */ run) => (run.live ? Number.MAX_VALUE : (run.updated ?? 0));
  return mine.sort((a, b) => order(b) - order(a))[0] ?? null;
}
