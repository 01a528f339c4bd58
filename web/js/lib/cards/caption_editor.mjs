// @ts-check
/** Plays one clip of the contact sheet, and edits its caption and the choice about it. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { ChoiceEditor } from "./choice_editor.mjs";

/**
 * @typedef {import("./caption_edits.mjs").Caption} Caption
 * @typedef {import("./caption_edits.mjs").Doors} Doors
 * @typedef {import("./caption_edits.mjs").Memory} Memory
 * @typedef {{ clip: number, name: string }} Next
 */

/** Selector of the element around a card on the canvas; an app shows cards in a scrolling list instead. */
const ON_CANVAS = "[data-node-id], .dom-widget";

export class CaptionEditor {
  /** The shown clip, with its caption as read from the server. @type {Caption | null} */
  #shown = null;
  #clip = -1;
  /** How often a clip was read: the answer to an earlier read may come after a change. */
  #reads = 0;

  /**
   * @param {{ scan: string, fps: number, doors: Doors, memory: Memory, resized: () => void, changed: (caption: Caption) => void,
   *   pressed: (clip: number) => void, without: (clip: number) => Next[] }} options `pressed`: which clip is open, -1 for none;
   *   `without`: clips without a caption, in the order in which they follow a clip
   */
  constructor({ scan, fps, doors, memory, resized, changed, pressed, without }) {
    this.scan = scan;
    this.doors = doors;
    this.memory = memory;
    this.resized = resized;
    this.changed = changed;
    this.pressed = pressed;
    this.without = without;
    this.name = element("strong");
    const save = this.choose.bind(this);
    this.choices = new ChoiceEditor({ fps, save, resized });
    this.media = element("div", { class: "wan-editor-media" });
    this.text = element("textarea", {
      rows: 4,
      spellcheck: "false",
      "aria-label": t("Caption"),
      "data-scrolls": "yes",
      oninput: () => this.#typed(),
    });
    this.said = element("span", { role: "status" });
    this.saving = button(t("Save caption"), t("Next to the clip, as UTF-8. Ctrl+Enter"), () =>
      this.save(),
    );
    const close = button("✕", t("Close"), () => this.close());
    mark(close, "aria-label", t("Close"));
    this.element = element(
      "div",
      { class: "wan-editor", role: "group", hidden: true, onkeydown: (event) => this.#key(event) },
      element("div", { class: "wan-editor-head" }, this.name, close),
      this.media,
      this.choices.cutting,
      this.text,
      element(
        "div",
        { class: "wan-editor-line" },
        this.saving,
        this.choices.excluding,
        this.choices.whole,
        this.said,
      ),
    );
  }

  get clip() {
    return this.#clip;
  }

  /** @param {number} clip @param {string} name */
  async open(clip, name) {
    this.choices.clear();
    this.#clip = clip;
    this.#shown = null;
    write(this.name, name);
    mark(this.element, "aria-label", name);
    fill(this.media);
    this.text.value = "";
    this.text.readOnly = true;
    this.saving.hidden = true;
    this.tell("");
    this.element.hidden = false;
    this.resized();
    this.pressed(clip);
    await this.choices.saved(clip);
    if (this.#clip !== clip) return;
    await this.read();
    if (this.#clip !== clip) return;
    // The user can type at once.
    if (!this.text.readOnly) this.text.focus({ preventScroll: true });
    this.#reveal();
  }

  /** Scrolls to the field in an app; the canvas does not scroll. */
  #reveal() {
    if (!this.element.closest(ON_CANVAS)) this.element.scrollIntoView({ block: "nearest" });
  }

  /** Reads the caption again, and shows it unless the user has edited the text. */
  async read() {
    const clip = this.#clip;
    if (clip < 0) return;
    this.#reads += 1;
    const read = this.#reads;
    const wanted = () => this.#clip === clip && this.#reads === read;
    try {
      const caption = await this.doors.caption(this.scan, clip);
      if (wanted()) this.#show(caption);
    } catch (error) {
      if (wanted()) this.fail(error);
    }
  }

  /** @param {Caption} caption */
  #show(caption) {
    if (!this.#shown) this.#play(caption);
    this.#shown = caption;
    const media = /** @type {HTMLElement | null} */ (this.media.querySelector("img, video"));
    this.choices.show(caption, media ?? this.media);
    this.text.value = this.memory.drafts.get(this.#keyOf(caption)) ?? caption.caption;
    this.text.readOnly = Boolean(caption.refusal);
    this.saving.hidden = Boolean(caption.refusal);
    write(this.saving, this.#following(caption).length ? t("Save, next") : t("Save caption"));
    if (caption.refusal) this.tell(told(caption.refusal));
    else if (caption.unreadable) {
      const why = told(caption.unreadable);
      this.tell(t("{why} Saving overwrites it; Undo restores it.", { why }), true);
    }
    this.resized();
  }

  /** @param {Caption} caption */
  #play({ clip, picture }) {
    const cannot = () => {
      fill(this.media, element("span", {}, t("This browser cannot play this file.")));
      this.resized();
    };
    const shared = { onerror: cannot, src: this.doors.address(this.scan, clip) };
    const known = () => this.choices.draw();
    if (picture) {
      const image = element("img", { alt: "", draggable: "false", onload: known, ...shared });
      fill(this.media, element("div", { class: "wan-picture" }, image, this.choices.crop));
      return;
    }
    const moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const video = element("video", {
      controls: true,
      loop: true,
      playsinline: true,
      onloadedmetadata: () => {
        known();
        this.#reveal();
      },
      ...shared,
    });
    video.muted = true;
    video.autoplay = moves;
    fill(this.media, element("div", { class: "wan-picture" }, video, this.choices.crop));
  }

  /**
   * Writes the choice about a clip; another one may be open by the time of the answer, which then begins with the name.
   * @param {Caption} caption @param {import("./choices.mjs").Choice} choice
   */
  async choose(caption, choice) {
    const about = (/** @type {string} */ said) =>
      this.#clip === caption.clip ? said : `${caption.name}: ${said}`;
    try {
      const done = await this.doors.choose(this.scan, caption.clip, caption.choice ?? {}, choice);
      this.memory.keep(this.scan, done, true);
      this.changed(done.caption);
      this.tell(
        about(
          choice.excluded
            ? t("Excluded. Run again to train without it.")
            : t("Saved. Run again to train with it."),
        ),
      );
      return done.caption;
    } catch (error) {
      await this.read();
      this.tell(about(told(error instanceof Error ? error.message : String(error))), true);
      this.resized();
      return null;
    }
  }

  #typed() {
    const shown = this.#shown;
    if (!shown) return;
    const key = this.#keyOf(shown);
    if (this.text.value === shown.caption) this.memory.drafts.delete(key);
    else this.memory.drafts.set(key, this.text.value);
    this.tell(this.text.value === shown.caption ? "" : t("not saved yet"));
  }

  async save() {
    const shown = this.#shown;
    if (!shown || shown.refusal) return;
    const typed = this.text.value;
    try {
      const done = await this.doors.write(this.scan, shown.clip, shown.caption, typed);
      this.memory.keep(this.scan, done);
      if (this.memory.drafts.get(this.#keyOf(shown)) === typed) {
        this.memory.drafts.delete(this.#keyOf(shown));
      }
      this.changed(done.caption);
      if (this.#shown === shown) await this.#goOn(shown, done);
    } catch (error) {
      this.fail(error);
    }
  }

  /** Returns the next clips without a caption; none if the shown clip had a caption already. @param {Caption} shown */
  #following({ clip, caption, unreadable }) {
    return caption || unreadable ? [] : this.without(clip);
  }

  /**
   * Called after a save: opens the next clip without a caption, if this one had none.
   * @param {Caption} shown as read from the server
   * @param {{ change: number, caption: Caption }} done
   */
  async #goOn(shown, done) {
    const [next, ...others] = done.caption.caption ? this.#following(shown) : [];
    if (!next) {
      this.#show(done.caption);
      this.tell(done.change ? t("Saved. Run again to train with it.") : "");
      return;
    }
    await this.open(next.clip, next.name);
    const left = others.length + 1;
    this.tell(t("Saved {name}. Clips without a caption: {left}.", { name: shown.name, left }));
  }

  close() {
    this.choices.clear();
    this.#clip = -1;
    this.#shown = null;
    fill(this.media); // removes the video, so that it stops
    this.element.hidden = true;
    this.resized();
    this.pressed(-1);
  }

  /** @param {string} said @param {boolean} bad */
  tell(said, bad = false) {
    write(this.said, said);
    mark(this.said, "data-bad", String(bad));
  }

  /** @param {unknown} error */
  fail(error) {
    this.tell(told(error instanceof Error ? error.message : String(error)), true);
    this.resized();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    event.stopPropagation(); // keeps the key from the canvas's shortcuts
    if (event.key === "Escape") this.close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.save();
    }
  }

  /** @param {Caption} caption */
  #keyOf({ clip, name }) {
    return `${clip}:${name}`;
  }
}
