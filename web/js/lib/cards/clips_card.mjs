// @ts-check
/** The card of Validate Video: every clip with its step and strength, next to the base model's. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { Card, notYet } from "./card.mjs";
import { rows, shape } from "./clips.mjs";

/** @typedef {import("./clips.mjs").Clips} Clips */

/** Height limit of the node in pixels; beyond it, the clips scroll. */
const MOST_HIGH = 420;

export class ClipsCard extends Card {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => void} grew
   * @param {(file: unknown) => string} address returns the address of an output's file; empty for none
   */
  constructor(frames, grew, address) {
    super(frames, { label: t("Clips to compare"), kind: "clips", grew });
    this.address = address;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.button = button("", t("Play or pause the clips"), () => this.switchPlay());
    /** Clips in view; the others do not play. @type {Set<Element>} */
    this.seen = new Set();
    this.sight = new IntersectionObserver((entries) => this.onSight(entries));
    this.show(null);
  }

  /** @param {Clips | null} facts */
  show(facts) {
    this.sight.disconnect();
    this.seen.clear();
    if (!facts) {
      fill(this.body, notYet(t("Shows every clip it renders, next to that of the base model.")));
    } else this.fill(facts);
    this.ask();
  }

  /** @param {Clips} facts */
  fill(facts) {
    const ratio = shape(facts);
    const scrolled = { class: "wan-compared", tabindex: 0, "data-scrolls": MOST_HIGH };
    const shown = rows(facts).flatMap(({ title, clips }) => [
      title ? element("p", { class: "wan-prompt", title }, title) : null,
      element("div", { class: "wan-compared-row" }, ...clips.map((clip) => this.clip(clip, ratio))),
    ]);
    fill(
      this.body,
      element("div", { ...scrolled, "aria-label": t("Clips to compare") }, ...shown),
      element("div", { class: "wan-player-row" }, this.button),
    );
    this.drawButton();
  }

  /** @param {import("./clips.mjs").Shown} shown @param {string} ratio */
  clip({ label, file, still }, ratio) {
    const video = element("video", {
      loop: true,
      playsinline: true,
      preload: "none",
      poster: this.address(still),
      "aria-label": label,
      // All restart together; clips of equal length then stay synchronous.
      onloadeddata: () => restart(video),
    });
    video.muted = true;
    video.style.aspectRatio = ratio;
    const source = this.address(file);
    if (source) video.src = source;
    this.sight.observe(video);
    return element("figure", {}, video, element("figcaption", {}, label));
  }

  /** @param {IntersectionObserverEntry[]} entries */
  onSight(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.seen.add(target);
      else this.seen.delete(target);
    }
    this.play();
  }

  switchPlay() {
    this.playing = !this.playing;
    this.drawButton();
    this.play();
  }

  play() {
    for (const video of this.body.querySelectorAll("video")) {
      if (!this.playing || !this.seen.has(video)) video.pause();
      // Browsers may refuse to play before the user has interacted with the page; the button then starts the clip.
      else video.play().catch(() => {});
    }
  }

  drawButton() {
    write(this.button, this.playing ? "❚❚" : "▶");
    mark(this.button, "aria-label", this.playing ? t("Pause previews") : t("Play previews"));
  }
}

/** @param {HTMLVideoElement} video restarts together with its neighbours */
function restart(video) {
  const row = video.closest(".wan-compared-row");
  for (const one of row?.querySelectorAll("video") ?? []) one.currentTime = 0;
}
