// @ts-check
/** Facts of a saved step under its clip: coverage by ComfyUI's loader, update per block, measures of the clip. */

import { element, fill, mark, write } from "../page/dom.mjs";
import { inOneText, t } from "../page/words.mjs";
import { short } from "../run/format.mjs";
import { loaderText, updateText } from "../run/looks.mjs";

/** @typedef {import("../run/looks.mjs").Look} Look */

export class SaveFacts {
  constructor() {
    this.measured = element("p", { class: "wan-hint" });
    this.taken = element("p", { class: "wan-hint" });
    this.bars = element("div", { class: "wan-updates", role: "img" });
    this.element = element(
      "div",
      { class: "wan-save-facts" },
      this.measured,
      this.taken,
      this.bars,
    );
  }

  /** @param {Look | null} look of the step @param {string} measures of its clip */
  show(look, measures) {
    write(this.measured, measures && t("Picture: {measures}.", { measures }));
    const update = look ? updateText(look) : "";
    write(this.taken, inOneText([look ? loaderText(look) : "", update]));
    mark(this.taken, "data-state", look?.passedOver ? "short" : "");
    this.draw(look?.bars ?? []);
    mark(this.bars, "aria-label", update);
    this.measured.hidden = !measures;
    this.taken.hidden = !this.taken.textContent;
    this.bars.hidden = !look?.bars.length;
    this.element.hidden = this.measured.hidden && this.taken.hidden;
  }

  /** @param {Look["bars"]} bars */
  draw(bars) {
    if (bars === this.drawn) return;
    this.drawn = bars;
    fill(this.bars, ...bars.map(bar));
  }
}

/** @param {Look["bars"][number]} block */
function bar({ name, norm, share }) {
  const made = element("span", { title: `${name}: ${short(norm)}` });
  made.style.setProperty("--wan-share", `${Math.max(4, Math.round(100 * share))}%`);
  if (name.startsWith("low ")) made.dataset.expert = "low";
  return made;
}
