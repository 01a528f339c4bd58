// @ts-check
/**
 * The translated status line of a message, from the message's facts, else the server's text. In English it equals the
 * server's text exactly; tests/nodes/status_lines.json tests both sides. Pure.
 */

import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { stateText } from "./facts.mjs";
import { clock, known } from "./format.mjs";
import { expertName, stateName } from "./names.mjs";

/**
 * The facts in a message's text; `kind` decides on the keys.
 * @typedef {{ kind: string, [fact: string]: any }} About
 */

/**
 * @param {{ text: string, about?: About | null }} message
 * @returns {string}
 */
export function lineOf({ text, about }) {
  const said = about && (about.kind === "stage" ? stageLine(about) : factLine(about));
  return said || told(String(text));
}

/** @param {About} about @returns {string} empty for an unknown kind */
function factLine(about) {
  const { step } = about;
  switch (about.kind) {
    case "step":
      return stepLine(about);
    case "evaluated":
      return evaluationLine(step, digits(about.eval_loss, 4), about.held_out === false);
    case "saved":
      return t("saved step {step}", { step });
    case "preview":
      return t("preview at step {step}", { step });
    case "skipped":
      return t("step {step} skipped: {reason}", { step, reason: told(String(about.reason)) });
    case "ended":
      return endLine(about);
    case "looking":
      return t("checking the cache");
    case "encoding":
      return t("encoding {done}/{total}: {name}", {
        .../** @type {any} */ (about),
        name: told(String(about.name)),
      });
    case "encoded":
      return about.left_out
        ? t("{encoded} encoded, {reused} reused, {left_out} skipped", /** @type {any} */ (about))
        : t("{encoded} encoded, {reused} reused", /** @type {any} */ (about));
    case "clips":
      return t("clip {done} of {total}", /** @type {any} */ (about));
    case "starting":
      return t("starting");
    default:
      return "";
  }
}

/** @param {number} step @param {string} loss @param {boolean} trained whether training clips were evaluated */
function evaluationLine(step, loss, trained) {
  return trained
    ? t("step {step}: evaluation loss {loss} on training clips", { step, loss })
    : t("step {step}: evaluation loss {loss}", { step, loss });
}

/** @param {About} about */
function stepLine({ step, steps, loss, seconds_per_step: pace, seconds_left: left, expert }) {
  const whose = expert ? `${expertName(expert)}   ` : "";
  return (
    whose +
    t("step {step}/{steps}   loss {loss}   {pace} s/it   {time} left", {
      step,
      steps,
      loss: digits(loss, 4),
      pace: digits(pace, 2),
      time: clock(left),
    })
  );
}

/** @param {About} about */
function endLine({ state, step, steps }) {
  if (known(steps)) return stateText({ state, step, steps });
  return t("{state} at step {step}", { state: stateName(state), step });
}

/** @param {About} about */
function stageLine({ stage, done, total }) {
  const name = stageText(stage);
  return name && known(total) ? `${name} ${done}/${total}` : name;
}

/** @param {string} stage of the engine */
function stageText(stage) {
  switch (stage) {
    case "load":
      return t("loading weights");
    case "start":
      return t("starting the engine");
    case "train":
      return t("training");
    case "evaluate":
      return t("measuring the evaluation loss");
    case "sample":
      return t("rendering a preview");
    case "save":
      return t("saving");
    case "audit":
      return t("measuring precision, pass");
    default:
      return "";
  }
}

/** @param {unknown} value @param {number} places */
function digits(value, places) {
  return known(value) ? value.toFixed(places) : "nan";
}
