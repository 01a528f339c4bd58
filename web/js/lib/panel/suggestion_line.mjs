// @ts-check
/** The saved step that a run suggests, or a text that none is better; a (?) shows the reason. */

import { button, element, enable, mark, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { inOneText, t } from "../page/words.mjs";

/** @typedef {import("../run/history.mjs").Suggestion} Suggestion */

export class SuggestionLine {
  /** @param {(step: number) => void} use */
  constructor(use) {
    /** @type {number | null} */
    this.best = null;
    this.text = element("span", {});
    this.why = button("?", "", () => this.explain(this.reason.hidden));
    this.why.classList.add("wan-why");
    mark(this.why, "aria-label", t("Why?"));
    this.reason = element("p", { class: "wan-hint" });
    this.use = button(
      "",
      t("Publish this saved step as the run's LoRA, under the run's name."),
      () => this.best !== null && use(this.best),
    );
    const line = element("div", {}, this.text, this.why, this.use);
    this.element = element("div", { class: "wan-suggestion", hidden: true }, line, this.reason);
    this.explain(false);
  }

  /** @param {boolean} on whether to show the reason */
  explain(on) {
    this.reason.hidden = !on;
    mark(this.why, "aria-expanded", String(on));
  }

  /**
   * @param {Suggestion | null} suggestion
   * @param {{ inUse: number | null, canUse: boolean, hasClips: boolean }} run `inUse`: the step that is the run's LoRA;
   *   `hasClips`: the player shows clips, and has the button to choose the step
   */
  draw(suggestion, { inUse, canUse, hasClips }) {
    this.best = suggestion?.best ?? null;
    this.element.hidden = !suggestion?.why || (this.best === null && !hasClips);
    write(this.text, shortText(this.best));
    const reason = reasonText(suggestion);
    write(this.reason, reason);
    mark(this.why, "title", reason);
    write(this.use, this.best === null ? "" : t("Use step {step}", { step: this.best }));
    this.use.hidden = this.best === null || this.best === inUse || !canUse || hasClips;
    enable(this.use, canUse);
  }
}

/** @param {number | null} best */
function shortText(best) {
  return best === null
    ? t("All steps look alike in the evaluation: compare the clips.")
    : t("★ Step {step} is suggested.", { step: best });
}

/** @param {Suggestion | null} suggestion */
export function reasonText(suggestion) {
  if (!suggestion?.why) return "";
  const step = suggestion.overfitsFrom;
  const fits =
    step !== null &&
    t("After step {step} the held-out loss rose while the training loss fell: it over-fits.", {
      step,
    });
  return inOneText([told(suggestion.why), fits]);
}
