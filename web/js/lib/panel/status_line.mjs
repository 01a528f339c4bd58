// @ts-check
/** The status line of a panel: the last message, or the summary of the run's files where that is newer. */

import { element, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { isOld } from "../run/status.mjs";

export class StatusLine {
  constructor() {
    /** The text; empty at first. */
    this.text = "";
    /** @type {import("../run/status.mjs").Origin} */
    this.origin = "";
    /** Whether that is the line of a step. */
    this.isStep = false;
    /** The text of the newest summary. */
    this.summary = "";
    this.element = element("div", { class: "wan-status" }, t("idle"));
    this.sign = element("span", { class: "wan-sign", "aria-hidden": "true" });
    this.words = element("span");
    this.headline = element("div", { class: "wan-headline" }, this.sign, this.words);
  }

  /**
   * @param {string} text
   * @param {import("../run/status.mjs").Origin} origin
   * @param {boolean} isStep whether it says what the numbers below say
   */
  write(text, origin, isStep = false) {
    this.text = text;
    this.origin = origin;
    this.isStep = isStep;
  }

  /** Another run is shown. @param {boolean} heard whether what was said last was said of that one */
  forget(heard) {
    if (!heard) this.write("", "");
    this.summary = "";
  }

  /** The text of the run's files, shown where the last message is older. @param {string} text @param {boolean} live */
  summarize(text, live) {
    const isNews = text !== this.summary;
    this.summary = text;
    if (isOld(this.origin, { live, isNews })) this.write(text, "summary");
  }

  /**
   * @param {boolean} live whether the run goes on
   * @param {import("../run/headline.mjs").Headline | null} headline
   */
  draw(live, headline) {
    this.headline.hidden = !headline;
    if (headline) {
      mark(this.headline, "data-kind", headline.kind);
      write(this.sign, headline.sign);
      write(this.words, headline.text);
    }
    const text = this.text || t("idle");
    if (this.element.textContent !== text) {
      this.element.textContent = text;
      this.element.title = text;
      // The numbers below say the same, and more.
      this.element.toggleAttribute("data-step", this.isStep);
    }
    this.element.toggleAttribute("data-bad", this.origin === "error");
    // The headline says what goes on.
    this.element.toggleAttribute("data-said", ["", "progress"].includes(this.origin));
    this.element.toggleAttribute("data-end", !live && Boolean(this.text));
  }
}
