// Visits the pages inside a real Airflow: VISIT is JSON with where, as whom, and which run has ended well.
// tests/airflow/test_web_in_browser.py starts it. With SCREENSHOTS, a folder, it leaves pictures there.
import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium, type Page } from "playwright-core";
import { look as stateLook, STATES } from "../src/format/states.ts";
import { PATIENCE_MS, serious } from "./browser/browser.ts";

interface Visit {
  url: string;
  user: string;
  password: string;
  /** Of the task instance, below the url. */
  page: string;
  dag: string;
  run: string;
  mode: "light" | "dark";
}

const visit = JSON.parse(process.env.VISIT ?? "{}") as Visit;
const folder = process.env.SCREENSHOTS;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: visit.mode });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  await logIn(page);
  await throughTheTab(page, visit.mode);
  await throughTheList(page, visit.mode);
  assert.deepEqual(faults, []);
} finally {
  await browser.close();
}

async function logIn(page: Page): Promise<void> {
  await page.goto(`${visit.url}/auth/login/`);
  await page.locator("input[name=username]").fill(visit.user);
  await page.locator("input[name=password]").fill(visit.password);
  await page.locator("button[type=submit], button:has-text('Sign in')").first().click();
  await page.waitForURL((url) => !url.pathname.includes("/auth/login"));
}

async function throughTheTab(page: Page, mode: string): Promise<void> {
  await page.goto(visit.url + visit.page);
  await page.getByRole("link", { name: "Training", exact: true }).click();
  const ours = page.locator(".elastic");
  await ours.locator(".el-header .el-state:text-is(\"Success\")").waitFor();
  await ours.getByRole("heading", { name: /^\d+ attempts?$/ }).waitFor();
  await look(page, `tab-${mode}`);
  for (const view of ["Workers", "Events", "Logs", "Checkpoints", "Overview"]) {
    await ours.getByRole("link", { name: view, exact: true }).click();
    await ours.locator(`.el-tabs [aria-current=page]:text-is("${view}")`).waitFor();
    await ours.locator(".el-loading").first().waitFor({ state: "detached" });
    assert.equal(await ours.locator(".el-notice.el-error").count(), 0, view);
    await look(page, `tab-${view.toLowerCase()}-${mode}`);
  }
  // The tab of Airflow stays the chosen one, and no colour of ours is hard to read on Airflow's.
  await showAllStates(page);
  await look(page, `states-${mode}`);
  assert.deepEqual(await serious(page, ".elastic"), []);
}

/** Adds a badge in each of Airflow's colours of states. */
async function showAllStates(page: Page): Promise<void> {
  const colours = STATES.map((state) => ({ state, colour: `var(--chakra-colors-${stateLook(state).colour}-solid)` }));
  await page.locator(".elastic .el-header .el-state").evaluate((badge, all) => {
    for (const { state, colour } of all) {
      const other = badge.cloneNode() as HTMLElement;
      other.style.setProperty("--el-state", colour);
      other.textContent = state;
      badge.after(other);
    }
  }, colours);
}

async function throughTheList(page: Page, mode: string): Promise<void> {
  await page.goto(`${visit.url}/plugin/elastic-runs`);
  await page.getByRole("searchbox").fill(visit.dag);
  const row = page.locator(".el-runs tbody tr", { hasText: visit.run });
  await row.waitFor();
  await look(page, `list-${mode}`);
  assert.deepEqual(await serious(page, ".elastic"), []);
  await row.getByRole("link").first().click();
  await page.waitForURL(/\/plugin\/training$/);
  await page.locator(".elastic .el-header .el-state:text-is(\"Success\")").waitFor();
}

async function look(page: Page, name: string): Promise<void> {
  if (folder) await page.screenshot({ path: join(folder, `airflow-${name}.png`) });
}
