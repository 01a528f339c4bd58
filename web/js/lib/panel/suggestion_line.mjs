// @ts-check
/** Which saved step a run suggests, and why, or why it suggests none; a button makes the step the run's LoRA. */

import { button, element, enable, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { inOneText, t } from "../page/words.mjs";

/** @typedef {import("../run/history.mjs").Suggestion} Suggestion */

export class SuggestionLine {
  /** @param {(step: number) => void} use */
  constructor(use) {
    /** @type {number | null} */
    this.best = null;
    this.text = element("span", {});
    this.use = button(
      "",
      t("Publish this saved step as the run's LoRA, under the run's name."),
      () => this.best !== null && use(this.best),
    );
    this.element = element("div", { class: "wan-suggestion", hidden: true }, this.text, this.use);
  }

  /**
   * @param {Suggestion | null} suggestion
   * @param {number | null} inUse the step that is the run's LoRA
   * @param {boolean} canUse
   */
  draw(suggestion, inUse, canUse) {
    this.best = suggestion?.best ?? null;
    this.element.hidden = !suggestion?.why;
    write(this.text, textOf(suggestion, inUse));
    write(this.use, this.best === null ? "" : t("Use step {step}", { step: this.best }));
    this.use.hidden = this.best === null || this.best === inUse;
    enable(this.use, canUse);
  }
}

/**
 * @param {Suggestion | null} suggestion
 * @param {number | null} inUse
 */
export function textOf(suggestion, inUse) {
  if (!suggestion?.why) return "";
  const said = told(suggestion.why);
  const parts = [suggestion.best === null ? said : `★ ${said}`];
  const from = suggestion.overfitsFrom;
  if (from !== null)
    parts.push(
      t("After step {step} the held-out loss rose while the training loss fell: it over-fits.", {
        step: from,
      }),
    );
  if (inUse !== null) parts.push(t("Step {step} is the run's LoRA now.", { step: inUse }));
  return inOneText(parts);
}
