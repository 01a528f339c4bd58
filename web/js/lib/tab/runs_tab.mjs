// @ts-check
/**
 * The sidebar tab "Training runs": a table of all runs of this ComfyUI, the curves of ticked runs, and the opened run.
 */

import { button, element, fill, write } from "../page/dom.mjs";
import { Follower } from "../page/pacing.mjs";
import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { CachedClips } from "./cached_clips.mjs";
import { Compared } from "./compared.mjs";
import { curvesCsv, runsCsv } from "./csv.mjs";
import { differing, found, unknownSetting } from "./differences.mjs";
import { FindBar } from "./find_bar.mjs";
import { actionsOf } from "./run_actions.mjs";
import { RunCard } from "./run_card.mjs";
import { RunTable } from "./run_table.mjs";

/**
 * @typedef {import("../page/routes.mjs").Routes} Routes
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {{ load: (workflow: any, name: string) => Promise<void>, queue: () => Promise<void>,
 *   copy: (text: string) => Promise<void>, address: (path: string) => string, seen: (runs: Summary[]) => void,
 *   save: (name: string, parts: string[]) => void }} Page
 */

const LIST_GAP = 1000;
/** Minimum pause between two reads of the list, in multiples of a read's duration: thousands of runs take time. */
const REST = 15;

export class RunsTab {
  /**
   * @param {Routes} routes
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {Page} page functions of ComfyUI's page
   */
  constructor(routes, frames, page) {
    this.routes = routes;
    this.page = page;
    this.frames = frames;
    this.shown = false;
    /** Whether the list of runs has been loaded. */
    this.known = false;
    /** @type {Summary[]} */
    this.runs = [];
    /** Whether there may be cached clips: there are runs, or the server reports clips. */
    this.cachesClips = false;
    /** The runs in the table; it is rebuilt only if they change. @type {unknown[]} */
    this.arranged = [];
    /** The opened run. @type {RunCard | null} */
    this.card = null;
    this.lister = new Follower(() => this.list(), {
      gap: LIST_GAP,
      failed: (error) => this.say(message(error)),
    });
    this.reader = new Follower(() => this.read(), { failed: (error) => this.say(message(error)) });
    this.draw = this.draw.bind(this);
    this.build();
  }

  build() {
    const again = () => {
      this.table.element.scrollTop = 0;
      this.frames.ask(this.draw);
    };
    this.compared = new Compared(this.routes, this.frames, {
      changed: () => this.comparedChanged(),
      save: () => this.saveCurves(),
      address: this.page.address,
    });
    this.table = new RunTable(this.frames, {
      open: (run) => this.open(run),
      opened: () => this.card?.id ?? null,
      compare: (run, on) => this.compare([run], on),
      group: (runs, on) =>
        this.compare(
          runs.map(({ id }) => id),
          on,
        ),
      ink: (run) => this.compared.inkOf(run),
      address: this.page.address,
    });
    this.bar = new FindBar({
      changed: again,
      grouped: (on) => {
        this.table.groups = on;
        this.table.arrange();
      },
      saveTable: () => this.page.save("wan_training_runs.csv", runsCsv(this.table.shown)),
    });
    this.spoken = element("div", { class: "wan-said", role: "status", "aria-live": "polite" });
    this.place = element("div", { class: "wan-opened", hidden: true });
    this.none = element(
      "div",
      { class: "wan-none", hidden: true },
      element(
        "p",
        {},
        t(
          "No runs yet. Each training is listed here, with its curve, previews, saved steps and LoRAs.",
        ),
      ),
      element(
        "p",
        {},
        t(
          "To begin, open a template at Templates → Extensions → ComfyUI-WanTrainer, choose a folder of clips in it, and press Run.",
        ),
      ),
    );
    this.cached = new CachedClips({
      read: () => this.routes.cached(),
      trim: () => this.routes.trimCache(),
      say: (text) => this.say(text),
      failed: (error) => this.say(message(error)),
    });
    this.element = element(
      "div",
      { class: "wan-runs" },
      element(
        "div",
        { class: "wan-run-head" },
        element("h2", {}, t("Training runs")),
        button(t("Refresh"), t("Read the list again"), () => this.refresh()),
      ),
      this.bar.element,
      this.spoken,
      this.none,
      this.table.element,
      this.compared.element,
      this.place,
      this.cached.element,
    );
    this.cached.element.hidden = true;
  }

  /** @param {HTMLElement} place */
  mount(place) {
    this.shown = true;
    fill(place, this.element);
    this.refresh();
  }

  unmount() {
    this.shown = false;
  }

  /** Schedules a read of the list. */
  refresh() {
    this.lister.ask();
  }

  /** Called after news of a run: reads its curve if it is compared, and the list if it is visible. */
  onStatus() {
    if (!this.shown) return;
    this.lister.ask();
    if (this.compared.runs.size) this.reader.ask();
  }

  async list() {
    const began = performance.now();
    this.runs = await this.routes.list();
    this.cachesClips = Boolean(this.runs.length || (await this.routes.cached()).bytes);
    this.frames.ask(this.draw);
    this.lister.gap = Math.max(LIST_GAP, REST * (performance.now() - began));
    this.known = true;
    this.page.seen(this.runs);
    return false;
  }

  /** Reads new lines of every compared run. @returns {Promise<boolean>} whether there are more */
  async read() {
    const more = await this.compared.read();
    this.frames.ask(this.draw);
    return more;
  }

  draw() {
    const { words, state } = this.bar.asked;
    const ids = new Set(this.runs.map(({ id }) => id));
    if (this.known) {
      for (const id of [...this.compared.runs.keys()])
        if (!ids.has(id)) this.compared.set(id, false);
      if (this.card && !ids.has(this.card.id)) this.close();
    }
    this.bar.element.hidden = !this.runs.length;
    this.table.element.hidden = !this.runs.length;
    this.none.hidden = !this.known || this.runs.length > 0;
    this.cached.element.hidden = !this.cachesClips;
    this.compared.draw(this.runs);
    const made = [this.runs, words, state];
    if (made.some((part, place) => part !== this.arranged[place])) {
      this.arranged = made;
      const { common } = this.routes;
      this.table.update(found(this.runs, words, state, common));
      this.bar.tell(this.table.runs.length, this.runs.length);
      this.bar.help(
        differing([{ name: "", runs: this.runs }]),
        unknownSetting(this.runs, words, common),
      );
    } else this.table.ask();
    this.updateCard();
  }

  updateCard() {
    const run = this.runs.find(({ id }) => id === this.card?.id);
    if (run) this.card?.update(run, Date.now() / 1000);
  }

  /** Opens a run below the table, or closes it. @param {string} id */
  open(id) {
    if (this.card?.id === id) {
      this.close();
      return;
    }
    const doors = {
      routes: this.routes,
      page: this.page,
      say: (/** @type {string} */ text) => this.say(text),
      failed: (/** @type {unknown} */ error) => this.say(message(error)),
      refresh: () => this.refresh(),
      close: () => this.close(),
    };
    this.card = new RunCard(id, actionsOf(doors));
    this.place.hidden = false;
    fill(this.place, this.card.element);
    this.updateCard();
    this.table.ask();
  }

  close() {
    const isInside = this.place.contains(document.activeElement);
    const id = this.card?.id;
    this.card = null;
    this.place.hidden = true;
    fill(this.place);
    this.table.draw();
    if (isInside && id) this.table.focus(id);
  }

  /** @param {string[]} ids @param {boolean} on */
  compare(ids, on) {
    for (const id of ids) this.compared.set(id, on);
    this.comparedChanged();
  }

  comparedChanged() {
    this.reader.ask();
    this.frames.ask(this.draw);
  }

  async saveCurves() {
    const runs = [...this.compared.runs.keys()];
    try {
      const parts = await curvesCsv(
        runs,
        (run, since) => this.routes.lines(run, since),
        (run, lines) => this.say(t("Reading {run}: {n} lines", { run, n: lines })),
      );
      this.page.save("wan_training_curves.csv", parts);
      const n = runs.length;
      this.say(counted(n, "Saved the curves of 1 run.", "Saved the curves of {n} runs."));
    } catch (error) {
      this.say(message(error));
    }
  }

  /** @param {string} text */
  say(text) {
    write(this.spoken, text);
  }
}

/** @param {unknown} error */
function message(error) {
  return told(error instanceof Error ? error.message : String(error));
}
