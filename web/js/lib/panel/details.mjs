// @ts-check
/** The panel's folded details: run name, last message, stages, numbers, memory, chart switches, buttons. */

import { element, fill, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { keep, kept } from "./kept.mjs";

const KEY = "details";
/** Number of shown marks, the newest ones. */
const MOST = 3;

export class Details {
  /**
   * @param {{ line: import("./status_line.mjs").StatusLine, meters: import("./meters.mjs").Meters, buttons: import("./buttons.mjs").Buttons,
   *   plot: import("../chart/plot.mjs").Plot, notifier: import("./notifier.mjs").Notifier }} parts that others fill
   * @param {() => void} turned
   */
  constructor({ line, meters, buttons, plot, notifier }, turned) {
    this.name = element("strong", { class: "wan-name" });
    this.marks = new MarksLine();
    /** Container of the line about the effect of Run. */
    this.standing = element("div", {});
    this.element = element(
      "details",
      { class: "wan-details", open: kept(KEY) },
      element("summary", {}, t("Details")),
      element("div", { class: "wan-head" }, this.name, line.element),
      this.marks.element,
      this.standing,
      meters.stages,
      meters.numbers,
      meters.memory,
      plot.controls,
      buttons.element,
      notifier.element,
    );
    this.element.addEventListener("toggle", () => {
      keep(KEY, this.element.open);
      turned();
    });
  }

  /** @param {string | null} run @param {import("../run/history.mjs").RunHistory} history */
  draw(run, history) {
    write(this.name, run ?? "");
    this.marks.draw(history.marks);
  }
}

class MarksLine {
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
