// @ts-check
/**
 * Sentences the server says in English where facts alone would not do: why a run stopped, and notes. Those listed here are
 * said in the language of the page, as refusals are (refusals.mjs); any other is shown as it came. Pure.
 */

import { withLabels } from "../page/labels.mjs";
import { t } from "../page/words.mjs";
import { formOf, readForm } from "./forms.mjs";
import { refusal } from "./refusals.mjs";
import { apart, together } from "./told_apart.mjs";

/**
 * @typedef {Record<string, string>} Values
 * @typedef {(values: Values) => string} Says
 */

/** Longer texts are a log's or a traceback's, no sentence of ours. */
const LONGEST = 2000;

/** As the Python code says them, with a hole for what it puts in: tests/web/run/told.test.mjs compares. @type {Says[]} */
export const SENTENCES = [
  (v) => t("Stop and keep was pressed", v),
  (v) => t("Cancel was pressed", v),
  (v) => t("stopped by the user", v),
  (v) => t("the parent process ended", v),
  (v) => t("{n} steps of this queue are done", v),
  (v) => t("status.json was damaged", v),
  (v) => t("It was never trained.", v),
  (v) => t("the mean of {n} saved steps of {run}", v),
  (v) => t("Its process ended unexpectedly.", v),
  (v) =>
    t("The training process ended unexpectedly (exit code {code}; its log ends with: {log}).", v),
  (v) =>
    t(
      "The training process was killed by the system, most likely because the computer's own memory (RAM) was full: {reason}.",
      v,
    ),
  (v) =>
    t(
      "The training process was killed from outside; why is not known. Shortly before, the computer's own memory (RAM) had room ({reason}). If you or another program ended it, nothing has to change.",
      v,
    ),
  (v) =>
    t(
      "The drive {drive}, which holds folder {folder}, is too full to write {file}: {free} are free. Make room on it.",
      v,
    ),
  (v) =>
    t(
      "The drive {drive}, which holds folder {folder}, has too little room: the next save needs about {need}, and {free} are free. Make room on it.",
      v,
    ),
  (v) =>
    t(
      "The drive {drive}, which holds folder {folder}, has too little room: the next save needs about {need}, all {left} to come {all}, and {free} are free. Make room on it.",
      v,
    ),
  (v) => t("delete runs that are no longer needed, in the tab Training runs", v),
  (v) =>
    t("delete cached clips that no unfinished run needs, with “Cached clips …” in that tab", v),
  (v) => t("take other files off that drive", v),
  (v) => t("it held {held} GiB, and {free} were free when last seen", v),
  (v) => t("{free} were free when last seen", v),
  (v) => t("how much was in use is not known", v),
  (v) => t("New run {run}.", v),
  (v) => t("{run} starts over: it has no intact saved step.", v),
  (v) => t("{run} is finished at step {step}; nothing to train.", v),
  (v) => t("{run} continues after step {step} of {steps}.", v),
  (v) => t("Continues after saved step {step} of {steps}.", v),
  (v) => t("the loss is not finite", v),
  (v) => t("the gradients are not finite", v),
  (v) =>
    t(
      "Previews are sampled in {steps} steps: {sampler}, {scheduler}, cfg {cfg}, shift {shift}.",
      v,
    ),
  (v) =>
    t(
      "Previews of this run are made by the high-noise expert alone: they end at noise level {level}, where the other expert takes over, and show what this one expects to come of it. Layout and motion count, not detail. Compare steps with each other; what the pair makes of both LoRAs shows a sampler graph with both models.",
      v,
    ),
  (v) =>
    t(
      "Previews of this run are made by the low-noise expert alone: they begin below noise level {level}, where it takes over, with a training clip ({clips}) that is noised that far. Look and detail count, not the layout, which is the clip's. Compare steps with each other; what the pair makes of both LoRAs shows a sampler graph with both models.",
      v,
    ),
  (v) =>
    t(
      "Clips go through the pair. The {expert} noise expert, which this run does not train, is {file}; LoRAs on it: {loras}.",
      v,
    ),
  (v) => t("Clips cannot go through the pair, so the trained expert makes them alone: {reason}", v),
  (v) => t("Both experts start from {file}: none of its name is for the low noise one.", v),
  (v) =>
    t(
      "{file} is another file than when the previews of this run began: clips from here on do not compare with those before.",
      v,
    ),
  (v) => t("{file} takes {needed} GiB on {place} for its steps, and {free} GiB are free.", v),
  (v) => t("Preview at step {step} was skipped: {reason}", v),
  (v) => t("Preview {sample} was not decoded: {reason}", v),
  (v) => t("the empty prompt", v),
  (v) => t("the negative prompt", v),
  (v) =>
    t(
      "the GPU has no room to decode it beside the model, and the computer's own memory none for the model meanwhile",
      v,
    ),
  (v) => t("no VAE is connected to Train Wan LoRA", v),
  (v) => t("Only {free} GiB are free; two saved steps need about {need} GiB.", v),
  (v) =>
    t(
      "Step {step} cannot be saved ({why}). Make room, or make the run's folder writable; the run waits and loses nothing.",
      v,
    ),
  (v) =>
    t(
      "The evaluation loss rose from {first} before training to {now} at step {step}: the run gets worse, not better. Stop it, lower learning_rate or alpha, and start again.",
      v,
    ),
  (v) => t("The {expert} noise expert: {sentence}", v),
  (v) =>
    t(
      "Training diverges at step {step}: in {n} steps the gradients grew to {norm} times and the loss to {loss} times what they were. Stop it, and go on from an earlier saved step with a lower learning_rate.",
      v,
    ),
  (v) =>
    t(
      "The evaluation loss has not fallen since step {step}: more steps like these add little. Stop it here, or extend the run only with another learning_rate or more clips.",
      v,
    ),
  (v) =>
    t(
      "learning_rate {rate} is above {high}: with {optimizer} a LoRA is not known to learn there, and often diverges. Lower it unless you mean it.",
      v,
    ),
  (v) =>
    t(
      "learning_rate {rate} is below {low}: with {optimizer} the LoRA will hardly change. Raise it.",
      v,
    ),
  (v) =>
    t(
      "learning_rate {rate} is outside of what is sensible with {optimizer}, {ends}: the run may diverge. Watch the evaluation loss.",
      v,
    ),
  (v) =>
    t(
      "learning_rate {rate} is outside of what is sensible with {optimizer}, {ends}: the run may need many more steps. Watch the evaluation loss.",
      v,
    ),
  (v) =>
    t(
      "{device} is full ({held} of {total} GiB), so Windows moves memory of this run into the computer's own, and steps take several times longer. Stop it, set memory to auto in Wan Train Settings, take other programs off the GPU, and press Run again: it goes on after its last saved step.",
      v,
    ),
  (v) =>
    t(
      "Step {step} is suggested: its held-out loss of {loss} is the lowest of the saved steps, {share} % below the {first} before training. Changes smaller than {noise} between steps are noise.",
      v,
    ),
  (v) =>
    t(
      "No step is suggested: the held-out loss went from {first} before training to {loss} at best, and changes smaller than {noise} between steps are noise.",
      v,
    ),
  (v) =>
    t(
      "No step is suggested: the held-out loss went from {first} before training to {loss} at best, at that step alone; changes smaller than {noise} that the steps beside it do not share are noise.",
      v,
    ),
  (v) =>
    t(
      "No step is suggested: the evaluation loss is one of training clips, which falls also where a run learns them by heart. Hold clips out: held_out_ratio of Wan Dataset Settings.",
      v,
    ),
  (v) =>
    t(
      "No step is suggested: that takes the held-out loss before training and at two saved steps or more.",
      v,
    ),
  (v) => t("No step is suggested: no evaluation loss was measured.", v),
  (v) => t("{reason} The loss is the mean of both experts, each as that step holds it.", v),
  (v) =>
    t(
      "{reason} So far the {expert} noise expert alone is judged; the other one is measured at its turn.",
      v,
    ),
  (v) =>
    t(
      "No step is suggested: {count} of {all} clips show noise or one colour alone, such as {name}, and a loss that falls on those is no better LoRA. Replace those clips, and press Run again.",
      v,
    ),
  (v) => t("No step is suggested: the clips are random tensors, so there is nothing to learn.", v),
  (v) => t("No step is suggested: the previews of all saved steps look broken ({why}).", v),
  (v) =>
    t(
      "These are random tensors, not data: a LoRA trained on them has learned nothing. For benchmarks and tests.",
      v,
    ),
  (v) => t("{file} was changed since, and stays as it is.", v),
];

/**
 * What says a text of the server in the language of the page, where it is one of `sentences`. To be made before the page has
 * learned another language than English.
 * @param {Says[]} sentences
 * @returns {(text: string) => string}
 */
export function teller(sentences) {
  const known = sentences.map((says) => ({ says, form: formOf(says({})) }));
  return (text) => {
    if (text.length > LONGEST) return text;
    for (const sentence of known) {
      const found = readForm(sentence.form, text);
      if (found) return sentence.says(inner(found));
    }
    return text;
  };
}

const listed = teller(SENTENCES);

/** What the server said, in the language of the page where it is known there. @param {string} text @returns {string} */
export function told(text) {
  if (text.length > LONGEST) return text;
  const parts = apart(text);
  return withLabels(parts.what === text ? piece(text) : together(parts, piece));
}

/** @param {string} text */
function piece(text) {
  const said = listed(text);
  return said === text ? refusal(text) : said;
}

/** What stands in a hole may be such a sentence itself. @param {Values} groups @returns {Values} */
function inner(groups) {
  const values = { ...groups };
  if ("reason" in values) values.reason = told(values.reason);
  return values;
}
