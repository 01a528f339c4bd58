// @ts-check
/** The panel's status line: messages of the run, and results of buttons. The details show the run's last message. */

import { element, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { isOld } from "../run/status.mjs";

/** Origins of texts that are not the run's messages. @type {import("../run/status.mjs").Origin[]} */
const OF_THE_PAGE = ["said", "error"];

export class StatusLine {
  constructor() {
    /** The newest text; empty at first. */
    this.text = "";
    /** @type {import("../run/status.mjs").Origin} */
    this.origin = "";
    /** The newest message of the run. */
    this.report = "";
    /** The text of the newest summary. */
    this.summary = "";
    this.element = element("div", { class: "wan-status" }, t("Starts with Run."));
    this.said = element("div", { class: "wan-answer", hidden: true });
    this.sign = element("span", { class: "wan-sign", "aria-hidden": "true" });
    this.words = element("span");
    this.headline = element("div", { class: "wan-headline" }, this.sign, this.words);
  }

  /** @param {string} text @param {import("../run/status.mjs").Origin} origin */
  write(text, origin) {
    this.text = text;
    this.origin = origin;
    if (!OF_THE_PAGE.includes(origin)) this.report = text;
  }

  /** Called when the panel shows another run. @param {boolean} heard whether the last text is about that run */
  forget(heard) {
    if (!heard) this.write("", "");
    this.summary = "";
  }

  /** Shows the summary's text if the last message is older. @param {string} text @param {boolean} live */
  summarize(text, live) {
    const isNews = text !== this.summary;
    this.summary = text;
    if (isOld(this.origin, { live, isNews })) this.write(text, "summary");
  }

  /**
   * @param {import("../run/headline.mjs").Headline | null} headline
   * @param {boolean} hushed whether another part of the panel shows the text
   */
  draw(headline, hushed) {
    this.headline.hidden = !headline;
    if (headline) {
      mark(this.headline, "data-kind", headline.kind);
      write(this.sign, headline.sign);
      write(this.words, headline.text);
    }
    write(this.element, this.report || t("Starts with Run."));
    // The headline shows the progress.
    this.element.toggleAttribute("data-said", ["", "progress"].includes(this.origin));
    write(this.said, OF_THE_PAGE.includes(this.origin) ? this.text : "");
    this.said.hidden = hushed || !this.said.textContent;
    this.said.toggleAttribute("data-bad", this.origin === "error");
  }
}
