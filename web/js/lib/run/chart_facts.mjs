// @ts-check
/** What the chart of a run shows: a line per expert, markers, how far it reaches. Pure. */

import { t } from "../page/words.mjs";
import { chartText } from "./facts.mjs";
import { expertName } from "./names.mjs";

/**
 * @param {import("./history.mjs").RunHistory} history
 * @param {boolean} live a run that trains shows how far it has to go
 * @returns {import("../chart/plot.mjs").Facts}
 */
export function chartFacts(history, live) {
  const names = [...new Set([...history.losses.keys(), ...history.evaluations.keys()])];
  // Evaluations of a run of one expert do not name it: they belong to it.
  const only = names.filter((name) => name !== "").length === 1;
  const shown = only ? names.filter((name) => name !== "") : names;
  return {
    lines: shown.map((name) => ({
      name: expertName(name),
      loss: history.losses.get(name),
      evaluation: history.evaluations.get(name) ?? (only ? history.evaluations.get("") : undefined),
    })),
    // Colours after those of both experts, so that no line changes colour when the second expert starts.
    priors: [...history.priors].map(([name, loss], index) => ({
      name: priorName(expertName(name)),
      place: 2 + index,
      loss,
    })),
    levels: [...history.levels.entries()]
      .sort((a, b) => a[0] - b[0])
      .map(([level, evaluation]) => ({ name: t("timestep {level}", { level }), evaluation })),
    best: history.suggestion?.best ?? null,
    overfitsFrom: history.suggestion?.overfitsFrom ?? null,
    marks: history.marks,
    skipped: history.skipped.points,
    saves: history.saves.points,
    samples: history.samples.points,
    timesteps: history.timesteps,
    steps: live ? (history.newest?.steps ?? 0) : 0,
    summary: chartText(history),
    empty: t("The loss appears here once the run trains."),
  };
}

/** @param {string} expert empty without one */
function priorName(expert) {
  return expert ? t("{expert}, prior preservation", { expert }) : t("prior preservation");
}

/**
 * The lines of several runs in one chart: a line per expert, called by its run, and by its expert where there are more.
 * @param {Map<string, import("./history.mjs").RunHistory>} runs in the order they were ticked
 * @returns {(import("../chart/plot.mjs").Line & { run: string })[]} a run with no curve yet has one line without points
 */
export function comparedLines(runs) {
  return [...runs].flatMap(([run, history]) => {
    const { lines } = chartFacts(history, false);
    if (lines.length < 2) return [{ ...lines[0], run, name: run }];
    return lines.map((line) => ({
      ...line,
      run,
      name: [run, line.name].filter(Boolean).join(" · "),
    }));
  });
}
