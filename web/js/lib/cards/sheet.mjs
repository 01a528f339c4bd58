// @ts-check
/** The contact sheet: pictures of the files, a group or a search in their captions, and the opened file. */

import { button, element, enable, fill, mark, write } from "../page/dom.mjs";
import { Follower } from "../page/pacing.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { CaptionEditor } from "./caption_editor.mjs";
import { doneText, foundText, isScan, lessText, replaceText } from "./caption_edits.mjs";
import { groups } from "./choices.mjs";
import { pictures } from "./dataset.mjs";

/**
 * @typedef {import("./dataset.mjs").Dataset} Dataset
 * @typedef {import("./dataset.mjs").Picture} Picture
 * @typedef {import("./caption_edits.mjs").Caption} Caption
 * @typedef {import("./caption_edits.mjs").Search} Search
 */

/** Minimum milliseconds between two searches while the user types. */
const GAP = 300;

export class Sheet {
  /** Results of the current search; null without one. @type {Search | null} */
  #found = null;
  /** Whether clips are excluded, where it was read since the scan. @type {Map<number, boolean>} */
  #excluded = new Map();
  /** Captions edited in this sheet, by clip. @type {Map<number, string>} */
  #written = new Map();
  /** The same, by file name. @type {Map<string, string>} */
  #byName = new Map();

  /**
   * @param {Dataset} dataset
   * @param {{ source: string, doors: import("./caption_edits.mjs").Doors,
   *   memory: import("./caption_edits.mjs").Memory, resized: () => void,
   *   wrote: (captions: Map<string, string>) => void }} options `source`: address of the contact sheet; `wrote` receives
   *   all captions edited in this sheet, by file name
   */
  constructor(dataset, { source, doors, memory, resized, wrote }) {
    this.pictures = pictures(dataset);
    this.source = source;
    this.doors = doors;
    this.memory = memory;
    this.resized = resized;
    this.wrote = wrote;
    this.scan = isScan(dataset.scan) ? String(dataset.scan) : "";
    const label = t("First frames");
    const shown = { class: "wan-sheet", tabindex: 0, "aria-label": label, "data-scrolls": "yes" };
    this.cells = element("ul", shown);
    this.editor = new CaptionEditor({
      scan: this.scan,
      fps: Number(dataset.fps) || 0,
      doors,
      memory,
      resized,
      changed: (caption) => this.#wrote([caption]),
      pressed: (clip) => this.#press(clip),
      without: (clip) => this.#without(clip),
    });
    this.follower = new Follower(() => this.#search(), { gap: GAP, failed: (e) => this.#fail(e) });
    this.#makeFind();
    this.draw();
    if (this.scan && (memory.find || memory.group)) this.follower.ask();
  }

  /** @returns {HTMLElement[]} from top to bottom */
  get parts() {
    if (!this.pictures.length) return [];
    return this.scan ? [this.finding, this.cells, this.editor.element] : [this.cells];
  }

  #makeFind() {
    const typed = () => {
      this.memory.find = this.find.value;
      this.follower.ask();
    };
    const field = (/** @type {string} */ name, /** @type {() => void} */ changed) =>
      element("input", { type: "search", placeholder: name, "aria-label": name, oninput: changed });
    this.find = field(t("Find in captions"), typed);
    this.find.value = this.memory.find;
    this.group = element("select", {
      "aria-label": t("Which clips are shown"),
      onchange: () => {
        this.memory.group = this.group.value;
        this.follower.ask();
      },
    });
    fill(this.group, ...groups().map(([value, name]) => element("option", { value }, name)));
    this.group.value = this.memory.group;
    this.by = field(t("Replace with"), () => {});
    this.said = element("span", { role: "status" });
    this.less = element("span", { class: "wan-hint" });
    this.replacing = button("", t("In all captions, everywhere in the text; case-sensitive"), () =>
      this.#replace(),
    );
    this.undoing = button(t("Undo"), t("Undoes the last change of captions, or of a clip"), () =>
      this.#undo(),
    );
    this.replaceLine = element(
      "div",
      { class: "wan-seek-line", hidden: true },
      this.by,
      this.replacing,
      this.less,
    );
    this.finding = element(
      "div",
      {
        class: "wan-seek",
        role: "group",
        "aria-label": t("Captions"),
        onkeydown: (event) => event.stopPropagation(), // keeps the key from the canvas's shortcuts
      },
      element("div", { class: "wan-seek-line" }, this.find, this.group, this.undoing),
      this.replaceLine,
      this.said,
    );
  }

  draw() {
    const bySheet = new Map(this.pictures.map((one) => [one.clip, one]));
    const shown = this.#found
      ? this.#found.captions.map((one) => ({ ...bySheet.get(one.clip), ...seen(one) }))
      : this.pictures;
    fill(this.cells, ...shown.map((one) => this.#cell(one)));
    this.#press(this.editor.clip);
    enable(this.undoing, this.memory.canUndo);
    this.replaceLine.hidden = !this.#found?.can_change || Boolean(this.memory.group);
    if (this.#found) {
      write(this.replacing, replaceText(this.#found));
      write(this.less, lessText(this.#found));
    }
    this.resized();
  }

  /** @param {Partial<Picture> & { name: string, clip: number | null }} picture */
  #cell(picture) {
    const { clip, name } = picture;
    const written = clip === null ? undefined : this.#written.get(clip);
    const empty = clip === null ? picture.empty : this.#isEmpty(clip, picture.empty);
    const about = written === undefined ? (picture.about ?? name) : `${name}\n${written}`;
    const excluded = (clip === null ? undefined : this.#excluded.get(clip)) ?? picture.excluded;
    const own = this.scan && clip !== null ? this.doors.frame(this.scan, clip) : "";
    const inside = [
      frame(picture, this.source, own),
      element("span", {}, `${excluded ? "✕ " : empty ? "⚠ " : ""}${name}`),
    ];
    const title = [about, empty ? t("no caption") : "", excluded ? t("excluded") : ""]
      .filter(Boolean)
      .join("\n");
    const facts = { title, "data-excluded": excluded ? "yes" : null };
    if (!this.scan || clip === null) return element("li", facts, ...inside);
    const press = () => this.open(clip, name);
    const made = element("button", { type: "button", title, onclick: press }, ...inside);
    mark(made, "data-clip", String(clip));
    return element("li", { "data-excluded": facts["data-excluded"] }, made);
  }

  /** Opens a clip, or closes it. @param {number} clip @param {string} name */
  open(clip, name) {
    if (this.editor.clip === clip) return this.editor.close();
    this.editor.open(clip, name);
  }

  /**
   * The clips without a caption, starting after `clip`; none during a search.
   * @param {number} clip
   * @returns {import("./caption_editor.mjs").Next[]}
   */
  #without(clip) {
    if (this.#found) return [];
    const at = this.pictures.findIndex((one) => one.clip === clip);
    const following = [...this.pictures.slice(at + 1), ...this.pictures.slice(0, Math.max(at, 0))];
    return following.flatMap(({ clip, name, empty }) =>
      clip !== null && this.#isEmpty(clip, empty) ? [{ clip, name }] : [],
    );
  }

  /** @param {number} clip @param {boolean} [scanned] whether it had no caption when it was scanned */
  #isEmpty(clip, scanned = false) {
    const written = this.#written.get(clip);
    return written === undefined ? scanned : !written;
  }

  /** @param {number} clip the opened one */
  #press(clip) {
    for (const made of this.cells.querySelectorAll("button")) {
      mark(made, "aria-pressed", String(made.getAttribute("data-clip") === String(clip)));
    }
  }

  async #search() {
    const { find: text, group } = this.memory;
    const found = await this.#searched(text, group);
    if (text !== this.memory.find || group !== this.memory.group) return true;
    this.#found = found;
    this.#tell(found ? foundText(found, !text) : "");
    this.draw();
  }

  /** @param {string} text @param {string} group */
  async #searched(text, group) {
    if (!text && !group) return null;
    const found = await this.doors.find(this.scan, text, group);
    this.#read(found.captions);
    return found;
  }

  async #replace() {
    if (!this.#found) return;
    try {
      const done = await this.doors.replace(
        this.scan,
        this.memory.find,
        this.by.value,
        this.#found,
      );
      this.memory.keep(this.scan, done);
      await this.#again();
      this.#tell(doneText(done, false));
    } catch (error) {
      this.#fail(error);
    }
  }

  async #undo() {
    const last = this.memory.take();
    if (!last) return;
    try {
      const done = await this.doors.undo(last.scan, last.change);
      this.memory.keep(last.scan, done, last.choice); // captions that could not be restored may be restored later
      await this.#again();
      this.#tell(doneText(done, true, last.choice));
    } catch (error) {
      this.#fail(error);
      this.draw();
    }
  }

  /** Refreshes all shown captions after a change. */
  async #again() {
    const pressed = [...this.cells.querySelectorAll("button")].map((one) =>
      Number(one.getAttribute("data-clip")),
    );
    this.#found = await this.#searched(this.memory.find, this.memory.group);
    const every = await this.doors.find(this.scan, "", "");
    const shown = [...pressed, ...this.#written.keys()];
    this.#wrote(every.captions.filter((one) => shown.includes(one.clip)));
    await this.editor.read();
  }

  /** @param {Caption[]} captions the current ones */
  #read(captions) {
    for (const { clip, choice } of captions) this.#excluded.set(clip, choice?.excluded === true);
  }

  /** @param {Caption[]} captions the current ones */
  #wrote(captions) {
    this.#read(captions);
    for (const { clip, name, caption } of captions) {
      this.#written.set(clip, caption);
      this.#byName.set(name, caption);
    }
    this.wrote(this.#byName);
    this.draw();
  }

  /** @param {string} said */
  #tell(said, bad = false) {
    write(this.said, said);
    mark(this.said, "data-bad", String(bad));
    this.resized();
  }

  /** @param {unknown} error */
  #fail(error) {
    this.#tell(told(error instanceof Error ? error.message : String(error)), true);
  }
}

/** @param {Caption} caption of a found file, which may have no picture on the sheet */
function seen({ clip, name, caption }) {
  return { clip, name, about: `${name}\n${caption}`, empty: !caption };
}

/**
 * @param {Partial<Picture>} picture
 * @param {string} source of the complete sheet
 * @param {string} own address of this picture, for a file that is not on the sheet
 */
function frame({ left, top, wide, shape }, source, own) {
  const made = element("div", { class: "wan-frame" });
  if (!shape) {
    const image = element("img", {
      alt: "",
      loading: "lazy",
      draggable: "false",
      class: "wan-own",
    });
    image.onerror = () => image.remove();
    image.src = own;
    if (own) made.append(image);
    return made;
  }
  made.style.aspectRatio = shape;
  if (!source) return made;
  const image = element("img", {
    alt: "",
    loading: "lazy",
    draggable: "false",
    // After a restart the temporary picture is gone; file names are shown instead.
    onerror: () => image.remove(),
  });
  image.src = source;
  Object.assign(image.style, { left, top, width: wide });
  made.append(image);
  return made;
}
