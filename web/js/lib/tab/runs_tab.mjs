// @ts-check
/** The sidebar tab "Training runs": every run of this ComfyUI, and the curves of those that are ticked. */

import { color } from "../chart/chart.mjs";
import { Plot } from "../chart/plot.mjs";
import { button, element, fill, toggle, write } from "../page/dom.mjs";
import { Follower } from "../page/pacing.mjs";
import { t } from "../page/words.mjs";
import { comparedLines } from "../run/curves.mjs";
import { RunHistory } from "../run/history.mjs";
import { told } from "../run/server_sentences.mjs";
import { RunCard } from "./run_card.mjs";
import { RunClips } from "./run_clips.mjs";
import { RunTable } from "./run_table.mjs";

/**
 * @typedef {import("../page/routes.mjs").Routes} Routes
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {{ load: (workflow: any, name: string) => Promise<void>, queue: () => Promise<void>,
 *   copy: (text: string) => Promise<void>, address: (path: string) => string, seen: (runs: Summary[]) => void }} Page
 */

const MOST_CURVES = 8;
const LIST_GAP = 1000;

export class RunsTab {
  /**
   * @param {Routes} routes
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {Page} page what only the page can do
   */
  constructor(routes, frames, page) {
    this.routes = routes;
    this.page = page;
    this.frames = frames;
    this.shown = false;
    /** Whether the server has said which runs there are. */
    this.known = false;
    /** @type {Summary[]} */
    this.runs = [];
    /** @type {Map<string, RunCard>} */
    this.cards = new Map();
    /** Runs whose curves are drawn. @type {Map<string, RunHistory>} */
    this.compared = new Map();
    this.lister = new Follower(() => this.list(), {
      gap: LIST_GAP,
      failed: (error) => this.say(message(error)),
    });
    this.reader = new Follower(() => this.read(), { failed: (error) => this.say(message(error)) });
    this.draw = this.draw.bind(this);
    /** Made when somebody asks for it. @type {RunTable | null} */
    this.table = null;
    this.build();
  }

  build() {
    this.plot = new Plot(this.frames, () => this.view(), { dots: false, timesteps: false });
    this.place = element("div");
    this.spoken = element("div", { class: "wan-said", role: "status", "aria-live": "polite" });
    this.listed = element("ul", { class: "wan-list", "aria-label": t("Training runs") });
    this.element = element(
      "div",
      { class: "wan-runs" },
      element(
        "div",
        { class: "wan-run-head" },
        element("h2", {}, t("Training runs")),
        element(
          "span",
          {},
          toggle(t("Table"), t("Show in a table in what the runs differ"), false, (on) =>
            this.tabulate(on),
          ),
          button(t("Refresh"), t("Read the list again"), () => this.refresh()),
        ),
      ),
      this.plot.element,
      this.place,
      this.spoken,
      this.listed,
    );
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

  /** Read the list again, soon. */
  refresh() {
    this.lister.ask();
  }

  /** A run has news: its curve if it is drawn, the list if it is seen. */
  onStatus() {
    if (!this.shown) return;
    this.lister.ask();
    if (this.compared.size) this.reader.ask();
  }

  async list() {
    this.runs = await this.routes.list();
    this.known = true;
    this.page.seen(this.runs);
    this.frames.ask(this.draw);
  }

  /** Read on in every compared run. @returns {Promise<boolean>} whether there is more */
  async read() {
    let more = false;
    for (const [run, history] of [...this.compared]) {
      const since = history.lines;
      more = history.take(since, await this.routes.metrics(run, since)) || more;
    }
    this.frames.ask(this.draw);
    return more;
  }

  draw() {
    const now = Date.now() / 1000;
    const ids = this.runs.map((run) => String(run.id));
    for (const id of [...this.cards.keys()]) if (!ids.includes(id)) this.forget(id);
    this.runs.forEach((run, index) => {
      const card = this.card(ids[index]);
      card.update(run, now);
      if (this.listed.children[index] !== card.element)
        this.listed.insertBefore(card.element, this.listed.children[index] ?? null);
    });
    this.table?.update(this.runs);
    this.plot.element.hidden = !this.runs.length;
    this.sayNone(t("No runs yet. Queue a graph with Train Wan LoRA."));
    this.frames.once(this.plot.draw);
    const compared = comparedLines(this.compared).map((line) => line.run);
    for (const [id, card] of this.cards) {
      const place = compared.indexOf(id);
      card.paint(place < 0 ? null : color(place, this.plot.dark));
    }
  }

  /** @param {string} id */
  card(id) {
    const found = this.cards.get(id) ?? new RunCard(id, this.actions());
    this.cards.set(id, found);
    return found;
  }

  /** @param {string} id */
  forget(id) {
    this.cards.get(id)?.element.remove();
    this.cards.delete(id);
    this.compared.delete(id);
  }

  /** @returns {import("./run_card.mjs").Actions} */
  actions() {
    const work =
      (/** @type {(id: string) => Promise<string>} */ act) => async (/** @type {string} */ id) => {
        try {
          this.say(await act(id));
        } catch (error) {
          this.say(message(error));
        }
      };
    return {
      open: work(async (id) => {
        await this.page.load(await this.routes.workflow(id), id);
        return t("Opened the workflow of {run}.", { run: id });
      }),
      resume: work(async (id) => {
        await this.page.load(await this.routes.workflow(id), id);
        await this.page.queue();
        return t("Queued {run}.", { run: id });
      }),
      copy: work(async (name) => {
        await this.page.copy(name);
        return t("Copied {name}", { name });
      }),
      // Trained without ComfyUI, or a mean of saved steps: nothing has put it among the LoRAs.
      use: work(async (id) => {
        const { best, saves } = await this.routes.detail(id);
        const step = best ?? saves?.at(-1)?.step ?? 0;
        await this.routes.use(id, step);
        this.refresh();
        return t("Step {step} is the run's LoRA now.", { step });
      }),
      remove: work(async (id) => {
        await this.routes.remove(id);
        this.refresh();
        return t("Deleted {run}.", { run: id });
      }),
      compare: (id, on) => this.compare(id, on),
      clips: (id) =>
        new RunClips(id, {
          routes: this.routes,
          address: this.page.address,
          say: (text) => this.say(text),
        }),
    };
  }

  /** @param {boolean} on whether the table is to be seen */
  tabulate(on) {
    this.table = on ? new RunTable() : null;
    fill(this.place, this.table?.element);
    this.frames.ask(this.draw);
  }

  /** @param {string} id @param {boolean} on */
  compare(id, on) {
    if (!on) this.compared.delete(id);
    else if (this.compared.size < MOST_CURVES) this.compared.set(id, new RunHistory());
    else {
      this.say(t("At most {n} curves fit in one chart. Untick one first.", { n: MOST_CURVES }));
    }
    this.reader.ask();
    this.frames.ask(this.draw);
  }

  /** @returns {import("../chart/plot.mjs").Facts} */
  view() {
    const lines = comparedLines(this.compared);
    const names = lines.map((line) => line.name).join(", ");
    return {
      lines,
      summary: t("Loss of {names}", { names }),
      empty: t("Tick runs to compare their curves."),
    };
  }

  /** Said while the list is known to be empty, and no longer. @param {string} none */
  sayNone(none) {
    if (this.known && !this.runs.length) this.say(none);
    else if (this.spoken.textContent === none) this.say("");
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
