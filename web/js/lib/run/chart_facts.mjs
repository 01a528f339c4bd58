// @ts-check
/** Data of a run's chart: a line per expert, markers, range of steps. Pure. */

import { t } from "../page/words.mjs";
import { chartText } from "./facts.mjs";
import { expertName } from "./names.mjs";

/**
 * @param {import("./history.mjs").RunHistory} history
 * @param {boolean} live the chart of a live run extends to its last step
 * @returns {import("../chart/plot.mjs").Facts}
 */
export function chartFacts(history, live) {
  const names = [...new Set([...history.losses.keys(), ...history.evaluations.keys()])];
  // Evaluations of a run of one expert do not name the expert.
  const only = names.filter((name) => name !== "").length === 1;
  const shown = only ? names.filter((name) => name !== "") : names;
  return {
    lines: shown.map((name) => ({
      name: expertName(name),
      loss: history.losses.get(name),
      evaluation: history.evaluations.get(name) ?? (only ? history.evaluations.get("") : undefined),
    })),
    // Colours after the two experts' colours, so that no line changes colour when the second expert starts.
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
 * The lines of several runs in one chart: a line per expert, named after its run, and its expert if the run has two.
 * @param {Map<string, import("./history.mjs").RunHistory>} runs in the order of ticking
 * @returns {(import("../chart/plot.mjs").Line & { run: string })[]} a run without a curve has one line without points
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
