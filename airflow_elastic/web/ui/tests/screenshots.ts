// Pictures of the pages in all states: `make screenshots` puts them into .screenshots/.
// `npm run screenshots -- slow` makes only those whose name has this in it.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium, type Page } from "playwright-core";
import { PLANS } from "./fixtures/plan.ts";
import { serve } from "./fixtures/server.ts";

const folder = process.env.SCREENSHOTS ?? join(import.meta.dirname, "..", "..", "..", "..", ".screenshots");
const only = process.argv[2] ?? "";
const VIEWS = ["workers", "events", "logs", "checkpoints"];
const SIZES = { wide: { width: 1280, height: 1000 }, narrow: { width: 390, height: 844 } };

interface Picture {
  name: string;
  query: string;
  before?: (page: Page) => Promise<void>;
}

const pages: Picture[] = [
  { name: "list", query: "" },
  { name: "running-scale", query: "?run=run/running", before: (page) => page.getByRole("button", { name: "Scale" }).click() },
  {
    name: "running-cursor", query: "?run=run/running",
    before: async (page) => {
      await page.locator(".el-plot .u-over").first().hover({ position: { x: 160, y: 40 } });
      await page.locator(".el-mark.el-level-error").first().focus();
    },
  },
  ...PLANS.map(({ id }) => ({ name: `${id}-overview`, query: `?run=run/${id}` })),
  ...["slow", "failed", "large", "hostile", "empty"].flatMap((id) =>
    VIEWS.map((view) => ({ name: `${id}-${view}`, query: `?run=run/${id}&view=${view}` })),
  ),
];

mkdirSync(folder, { recursive: true });
const fixture = await serve();
const executablePath = process.env.CHROMIUM || "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let made = 0;
for (const mode of ["light", "dark"] as const) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    const context = await browser.newContext({ viewport, colorScheme: mode, timezoneId: "Europe/Berlin", reducedMotion: "reduce" });
    const page = await context.newPage();
    for (const { name, query, before } of pages) {
      const file = `${name}-${mode}-${size}.png`;
      if (!file.includes(only)) continue;
      await page.goto(`${fixture.url}/${query}`);
      await page.locator(".el-header").waitFor();
      await page.locator(".el-loading").waitFor({ state: "detached" });
      await page.waitForTimeout(300); // charts draw after their data are there
      await before?.(page);
      if (before) await page.waitForTimeout(300);
      await page.screenshot({ path: join(folder, file), fullPage: !before });
      made += 1;
    }
    await context.close();
  }
}
await browser.close();
await fixture.close();
console.log(`${made} pictures in ${folder}`);
