// @ts-check
/** What was marked as wrong with a run, newest first: the same sentences that its chart shows at their steps. */

import { element, fill } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";

const MOST = 3;

export class MarksLine {
  constructor() {
    this.element = element("ul", { class: "wan-marks", hidden: true });
    this.known = "";
  }

  /** @param {import("../run/history.mjs").Mark[]} marks */
  draw(marks) {
    const shown = marks.slice(-MOST).reverse();
    const texts = shown.map((one) => `⚠ ${told(one.text)}`);
    this.element.hidden = !texts.length;
    if (this.known === texts.join("\n")) return;
    this.known = texts.join("\n");
    fill(this.element, ...texts.map((text) => element("li", {}, text)));
  }
}
