// @ts-check
/** The line in a Train Wan LoRA that says what a run of its name means, before anything is queued. */

import { element, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { standingText } from "./standing.mjs";

/** @typedef {import("./standing.mjs").Standing} Standing */

export class RunLine {
  /** @param {() => void} changed is told when the line may have another height */
  constructor(changed) {
    this.changed = changed;
    this.element = element("section", {
      class: "wan-standing",
      role: "status",
      hidden: true,
    });
  }

  /** @param {Standing | null} run @param {import("./standing.mjs").Titles} title */
  show(run, title) {
    const text = run ? standingText(run, title) : "";
    if (text === this.element.textContent) return;
    mark(this.element, "aria-label", t("The run of this name"));
    mark(this.element, "data-action", run?.action ?? "");
    write(this.element, text);
    this.element.hidden = !text;
    this.changed();
  }
}
