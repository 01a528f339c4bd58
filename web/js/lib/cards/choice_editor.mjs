// @ts-check
/** Excludes the opened clip, chooses its piece on a strip, and moves its crop by mouse or arrow keys. */

import { button, element, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import {
  cropOf,
  isCut,
  movedPiece,
  pieceOf,
  pieceText,
  withCrop,
  withExcluded,
  withPiece,
} from "./choices.mjs";

/**
 * @typedef {import("./choices.mjs").Choice} Choice
 * @typedef {import("./caption_edits.mjs").Caption} Caption
 */

/** Milliseconds without a movement after which a piece or crop is saved. */
const SETTLED = 350;
/** Share of the picture that an arrow key moves the crop. */
const KEY = 0.05;
/** @type {Record<string, number>} */
const ARROWS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

export class ChoiceEditor {
  /** The shown clip. @type {Caption | null} */
  #shown = null;
  /** The choice on the page, which may not be saved yet. @type {Choice} */
  #choice = {};
  /** Whether `#choice` waits to be saved. */
  #waits = false;
  #timer = 0;
  /** Ends when all changes are saved, with the clip of the last one. @type {Promise<Caption | null>} */
  #saved = Promise.resolve(null);
  /** Of each clip that was changed: ends when its last change is saved. @type {Map<number, Promise<Caption | null>>} */
  #savedOf = new Map();

  /**
   * @param {{ fps: number, save: (caption: Caption, choice: Choice) => Promise<Caption | null>, resized: () => void }} options
   *   `fps`: of the dataset; `save` writes a choice and returns the clip as it is now, or null if it was refused
   */
  constructor({ fps, save, resized }) {
    this.fps = fps;
    this.save = save;
    this.resized = resized;
    const end = (/** @type {"start" | "end"} */ which, /** @type {string} */ name) =>
      element("input", {
        type: "range",
        step: "any",
        min: 0,
        "aria-label": name,
        oninput: (event) => this.#cut(which, Number(event.target.value)),
        onkeydown: (event) => this.#step(event, which),
      });
    this.start = end("start", t("Start of the piece"));
    this.end = end("end", t("End of the piece"));
    this.between = element("div", { class: "wan-strip-between" });
    this.strip = element("div", { class: "wan-strip" }, this.between, this.start, this.end);
    this.piece = element("span", { class: "wan-hint" });
    this.excluding = button("", "", () => this.#exclude());
    this.whole = button(
      t("Complete clip"),
      t("Removes the piece and the crop of this clip"),
      () => {
        const { excluded } = this.#choice;
        this.#change(withExcluded({}, Boolean(excluded)), 0);
      },
    );
    this.cutting = element("div", { class: "wan-strip-line" }, this.strip, this.piece);
    this.crop = element("div", {
      class: "wan-crop",
      role: "slider",
      tabindex: 0,
      title: t("Trained part of the picture: drag it, or press arrow keys"),
      "aria-label": t("Crop"),
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      onpointerdown: (event) => this.#grab(event),
      onkeydown: (event) => this.#nudge(event),
    });
  }

  /** @param {Caption} caption as the server reads it now @param {HTMLElement & Partial<HTMLVideoElement>} media */
  show(caption, media) {
    this.settle();
    this.#shown = caption;
    this.#choice = caption.choice ?? {};
    this.media = media;
    const video = media instanceof HTMLVideoElement ? media : null;
    if (video) video.ontimeupdate = () => this.#loop(video);
    this.draw();
  }

  /** Saves a change at once and shows no clip: until the next one is read, no button may act on this one. */
  clear() {
    this.settle();
    this.#shown = null;
    this.#choice = {};
    // A crop that is being dragged leaves the page without an event, and comes back with the next clip.
    this.crop.onpointermove = null;
    this.crop.onpointerup = null;
    for (const one of [this.excluding, this.whole, this.cutting, this.crop]) one.hidden = true;
  }

  /** Ends when the changes of a clip are saved, so that it is read as it is then. @param {number} clip */
  async saved(clip) {
    await this.#savedOf.get(clip);
  }

  get #duration() {
    const played = this.media instanceof HTMLVideoElement ? this.media.duration : 0;
    return this.#shown?.duration_s || (Number.isFinite(played) ? played : 0);
  }

  get #least() {
    return (this.#shown?.bucket?.num_frames ?? 1) / (this.fps || 16);
  }

  /** Shows the choice of the page; called again when the size of the picture is known. */
  draw() {
    const shown = this.#shown;
    if (!shown) return;
    const able = !shown.choice_refusal;
    const { excluded = false } = this.#choice;
    write(this.excluding, excluded ? t("Include") : t("Exclude"));
    this.excluding.title = excluded
      ? t("Trains this clip again")
      : t(
          "Excludes this clip from training; its file is kept, and wan_dataset.json next to it records the choice",
        );
    mark(this.excluding, "aria-pressed", String(excluded));
    this.excluding.hidden = !able;
    this.whole.hidden = !able || !isCut(this.#choice);
    const duration = this.#duration;
    const piece = pieceOf(this.#choice, duration);
    this.cutting.hidden =
      !able || excluded || duration <= this.#least || shown.bucket?.num_frames === 1;
    for (const [input, value] of /** @type {[HTMLInputElement, number][]} */ ([
      [this.start, piece.start],
      [this.end, piece.end],
    ])) {
      input.max = String(duration);
      input.value = String(value);
      mark(input, "aria-valuetext", `${value.toFixed(2)} s`);
    }
    const share = (/** @type {number} */ at) => `${duration ? (100 * at) / duration : 0}%`;
    Object.assign(this.between.style, {
      left: share(piece.start),
      width: share(piece.end - piece.start),
    });
    write(this.piece, pieceText(piece, duration));
    this.#drawCrop(able && !excluded);
    this.resized();
  }

  /** @param {boolean} able */
  #drawCrop(able) {
    const window = able ? this.#window() : null;
    this.crop.hidden = !window;
    if (!window) return;
    const { axis, size, at } = window;
    const [place, side] = axis ? ["top", "height"] : ["left", "width"];
    const [other, across] = axis ? ["left", "width"] : ["top", "height"];
    Object.assign(this.crop.style, {
      [place]: `${100 * (1 - size) * at}%`,
      [side]: `${100 * size}%`,
      [other]: "0",
      [across]: "100%",
    });
    mark(this.crop, "aria-valuenow", String(Math.round(100 * at)));
    mark(this.crop, "aria-orientation", axis ? "vertical" : "horizontal");
  }

  #window() {
    const media = /** @type {any} */ (this.media);
    const wide = media?.videoWidth || media?.naturalWidth;
    const high = media?.videoHeight || media?.naturalHeight;
    return cropOf(wide, high, this.#shown?.bucket, this.#choice);
  }

  #exclude() {
    this.#change(withExcluded(this.#choice, !this.#choice.excluded), 0);
  }

  /** @param {"start" | "end"} which @param {number} to */
  #cut(which, to) {
    const duration = this.#duration;
    const piece = movedPiece(pieceOf(this.#choice, duration), which, to, this.#least, duration);
    this.#change(withPiece(this.#choice, piece, duration));
    const { media } = this;
    if (media instanceof HTMLVideoElement) {
      media.currentTime = which === "start" ? piece.start : Math.max(piece.start, piece.end - 0.5);
    }
  }

  /** Arrow keys move an end by a frame. @param {KeyboardEvent} event @param {"start" | "end"} which */
  #step(event, which) {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    const piece = pieceOf(this.#choice, this.#duration);
    // Up makes a number larger, as in a number field.
    const way = event.key === "ArrowUp" || event.key === "ArrowDown" ? -step : step;
    this.#cut(which, piece[which] + way * (event.shiftKey ? 1 : 0.1));
  }

  /** @param {PointerEvent} event */
  #grab(event) {
    const window = this.#window();
    const frame = this.crop.parentElement?.getBoundingClientRect();
    if (!window || !frame) return;
    event.preventDefault();
    event.stopPropagation(); // the node does not move
    this.crop.focus({ preventScroll: true });
    this.crop.setPointerCapture(event.pointerId);
    const { axis, size, at } = window;
    const first = axis ? event.clientY : event.clientX;
    const room = (1 - size) * (axis ? frame.height : frame.width);
    let moved = 0;
    this.crop.onpointermove = (now) => {
      moved = (axis ? now.clientY : now.clientX) - first;
      this.#change(withCrop(this.#choice, axis, at + moved / room));
    };
    this.crop.onpointercancel = () => {
      this.crop.onpointermove = null;
    };
    this.crop.onpointerup = () => {
      this.crop.onpointermove = null;
      // A click goes to the video below.
      if (!moved && this.media instanceof HTMLVideoElement) {
        if (this.media.paused) this.media.play();
        else this.media.pause();
      }
    };
  }

  /** @param {KeyboardEvent} event */
  #nudge(event) {
    const window = this.#window();
    const step = ARROWS[event.key];
    if (!window || !step) return;
    event.preventDefault();
    this.#change(withCrop(this.#choice, window.axis, window.at + KEY * step));
  }

  /** @param {Choice} choice @param {number} [after] milliseconds until it is saved */
  #change(choice, after = SETTLED) {
    const shown = this.#shown;
    if (!shown) return;
    this.#choice = choice;
    this.#waits = true;
    this.draw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.settle(), after);
  }

  /** Saves a change at once. */
  settle() {
    clearTimeout(this.#timer);
    const choice = this.#choice;
    if (!this.#waits || !this.#shown) return;
    this.#waits = false;
    const shown = this.#shown;
    const { clip } = shown;
    const saved = this.#saved.then(async (last) => {
      // The change before this one may have been saved meanwhile.
      const before = [this.#shown, last].find((one) => one?.clip === clip) ?? shown;
      const now = await this.save(before, choice);
      if (!now) return null;
      if (this.#shown?.clip === clip) {
        this.#shown = now;
        // A later change may wait to be saved, or for its turn.
        if (!this.#waits && this.#savedOf.get(clip) === saved) this.#choice = now.choice ?? {};
        this.draw();
      }
      return now;
    });
    this.#saved = saved;
    this.#savedOf.set(clip, saved);
  }

  /** Plays the piece only. @param {HTMLVideoElement} video */
  #loop(video) {
    const { start, end } = pieceOf(this.#choice, this.#duration);
    const outside = video.currentTime < start - 0.1 || video.currentTime > end;
    if (isCut(this.#choice) && !video.paused && outside) video.currentTime = start;
  }
}
