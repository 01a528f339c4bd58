// @ts-check
/** One preview of the grid: shows its first frame, and plays the clip over it. */

import { element, fill, mark } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { release } from "./posters.mjs";

/** Width of a first frame in pixels; small, because hundreds are kept. */
const POSTER = 256;

export class Cell {
  /**
   * @param {string} source address of the clip
   * @param {{ label: string, press: () => void, sized: (shape: string) => void }} options `sized`: width by height, once known
   */
  constructor(source, { label, press, sized }) {
    this.source = source;
    this.sized = sized;
    /** Whether loading the first frame has succeeded or failed. */
    this.isKnown = false;
    /** The clip while it plays. @type {HTMLVideoElement | null} */
    this.video = null;
    this.poster = element("canvas", { "aria-hidden": "true" });
    this.element = element(
      "button",
      { type: "button", class: "wan-grid-clip", tabindex: -1, "aria-label": label, onclick: press },
      this.poster,
    );
  }

  /** @param {HTMLVideoElement} video that has its first frame */
  draw(video) {
    this.isKnown = true;
    const { videoWidth: wide, videoHeight: high } = video;
    if (!wide || !high) return this.fail();
    const scale = Math.min(1, POSTER / wide);
    this.poster.width = Math.round(wide * scale);
    this.poster.height = Math.max(1, Math.round(high * scale));
    const { width, height } = this.poster;
    this.poster.getContext("2d")?.drawImage(video, 0, 0, width, height);
    mark(this.element, "data-state", "known");
    this.sized(`${wide} / ${high}`);
  }

  fail() {
    this.isKnown = true;
    mark(this.element, "data-state", "broken");
    fill(this.element, element("span", {}, t("This browser cannot play this file.")));
  }

  /** Creates the muted clip over the first frame. @returns {HTMLVideoElement} */
  show() {
    if (this.video) return this.video;
    this.video = element("video", { playsinline: true, "aria-hidden": "true", tabindex: -1 });
    this.video.muted = true;
    this.element.append(this.video);
    this.video.src = this.source;
    return this.video;
  }

  hide() {
    if (!this.video) return;
    release(this.video);
    this.video.remove();
    this.video = null;
  }
}
