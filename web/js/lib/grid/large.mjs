// @ts-check
/** One preview of the grid at full size, next to the base model's clip of the same prompt. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { release } from "./posters.mjs";

/**
 * @typedef {import("./table.mjs").Sample} Sample
 * @typedef {{ sample: Sample, caption: string, before: Sample | null, canUse: boolean, isUsed: boolean }} Shown
 */

export class Large {
  /**
   * @param {{ address: (sample: Sample) => string, move: (down: number, right: number) => void, back: () => void,
   *   use: (step: number) => void }} actions
   */
  constructor({ address, move, back, use }) {
    this.address = address;
    /** @type {Shown | null} */
    this.shown = null;
    this.clips = element("div", { class: "wan-grid-pair" });
    this.words = element("p", { class: "wan-prompt" });
    this.back = button(t("Back to all"), t("Escape"), back);
    this.use = button(
      t("Use this step"),
      t("Publish this saved step as the run's LoRA, under the run's name."),
      () => this.shown && use(this.shown.sample.step),
    );
    this.used = element("span", {}, t("in use"));
    const turn = (
      /** @type {string} */ sign,
      /** @type {string} */ title,
      /** @type {number} */ by,
    ) => {
      const made = button(sign, title, () => move(0, by));
      mark(made, "aria-label", title);
      return made;
    };
    this.element = element(
      "section",
      { class: "wan-grid-large", hidden: true },
      this.clips,
      this.words,
      element(
        "div",
        { class: "wan-player-row" },
        this.back,
        turn("◀", t("Earlier step"), -1),
        turn("▶", t("Later step"), 1),
        this.use,
        this.used,
      ),
    );
  }

  /** @param {Shown} shown */
  show(shown) {
    const isNew = shown.sample.id !== this.shown?.sample.id;
    this.shown = shown;
    const { sample, before, caption, canUse, isUsed } = shown;
    if (isNew) {
      this.#empty();
      const first = before && before.id !== sample.id ? before : null;
      const named = first && (first.rendering ? t("base model") : t("before training"));
      fill(this.clips, first && this.#clip(first, named ?? ""), this.#clip(sample, caption));
    }
    write(this.words, sample.text ?? "");
    this.use.hidden = !canUse || isUsed;
    this.used.hidden = !isUsed;
    mark(this.element, "aria-label", caption);
    this.element.hidden = false;
  }

  hide() {
    this.shown = null;
    this.#empty();
    this.element.hidden = true;
  }

  #empty() {
    for (const video of this.clips.querySelectorAll("video")) release(video);
    fill(this.clips);
  }

  /** @param {Sample} sample @param {string} caption */
  #clip(sample, caption) {
    const video = element("video", {
      controls: true,
      loop: true,
      playsinline: true,
      autoplay: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      "aria-label": caption,
      // All restart together; clips of equal length then stay synchronous.
      onloadeddata: () => {
        for (const one of this.clips.querySelectorAll("video")) one.currentTime = 0;
      },
    });
    video.muted = true;
    video.src = this.address(sample);
    return element("figure", {}, video, element("figcaption", {}, caption));
  }
}
