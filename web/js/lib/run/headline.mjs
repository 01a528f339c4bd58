// @ts-check
/** The first line of the panel: what the node does now, or how its run ended. Pure. */

import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { clock, known, secondsLeft } from "./format.mjs";

/**
 * @typedef {{ kind: "ready" | "busy" | "done" | "stopped", sign: string, text: string }} Headline
 * @typedef {import("./line.mjs").About} About
 */

/** Sign of each kind, for users who do not see the colours. */
const SIGNS = { ready: "○", busy: "▶", done: "✓", stopped: "■" };

/**
 * @param {{ chip: string | null, about: About | null, live: boolean, fits?: boolean, noFolder?: boolean, detail: import("../page/routes.mjs").Detail | null,
 *   history: import("./history.mjs").RunHistory }} read `chip`: the current stage; `about`: its newest message; `fits`: false
 *   if the training does not fit in memory; `noFolder`: the user has still to choose a folder
 * @returns {Headline | null} null for a failure, which another part of the panel shows
 */
export function headlineOf({ chip, about, live, detail, history, fits = true, noFolder = false }) {
  if (chip === "Cache") return headline("busy", encoding(about));
  if (about?.kind === "waits") return headline("busy", t("Waiting for the nodes before it"));
  if (about?.kind === "blocked")
    return headline(
      "stopped",
      t("Not trained: {node} failed. The red box says what to do.", { node: about.node }),
    );
  const state = live ? "running" : detail?.state;
  if (state === "failed") return null;
  if (state === "done" && detail) return headline("done", doneText(detail, history));
  if (state === "running" || chip) return headline("busy", busyText(chip, about, history));
  if (detail) return headline("stopped", stoppedText(detail));
  if (about?.kind === "encoded") return headline("busy", t("Clips are encoded"));
  if (noFolder) return headline("ready", t("First choose a folder of clips."));
  return headline("ready", fits ? t("Not trained yet: press Run.") : t("Not trained yet."));
}

/** @param {Headline["kind"]} kind @param {string} text @returns {Headline} */
function headline(kind, text) {
  return { kind, sign: SIGNS[kind], text };
}

/** @param {About | null} about */
function encoding(about) {
  return about?.kind === "encoding"
    ? t("Encoding clips {done} of {total}", { done: about.done, total: about.total })
    : t("Encoding clips");
}

/** @param {string | null} chip @param {About | null} about @param {import("./history.mjs").RunHistory} history */
function busyText(chip, about, history) {
  if (chip === "Load") return t("Loading the model");
  if (chip === "Save") return t("Saving");
  if (chip === "Validate")
    return about?.stage === "sample"
      ? t("Rendering a preview")
      : t("Measuring the evaluation loss");
  const line = history.newest;
  if (!line) return chip === "Train" ? t("Training") : t("Starting");
  const { step, steps, seconds_left: hours, beside_left: other } = line;
  const time = clock(secondsLeft(history.secondsPerStep, step, steps, hours, other));
  return time
    ? t("Training, {time} left, step {step} of {steps}", { time, step, steps })
    : t("Training, step {step} of {steps}", { step, steps });
}

/** @param {import("../page/routes.mjs").Detail} detail @param {import("./history.mjs").RunHistory} history */
function doneText({ step }, history) {
  const time = clock(history.trained.seconds);
  return history.trained.count && known(step)
    ? counted(step, "Done. 1 step in {time}", "Done. {n} steps in {time}", { time })
    : t("Done.");
}

/** @param {import("../page/routes.mjs").Detail} detail */
function stoppedText({ step, steps, reason }) {
  return reason
    ? t("Stopped: {reason}", { reason: told(reason) })
    : t("Stopped: step {step} of {steps}", { step, steps });
}
