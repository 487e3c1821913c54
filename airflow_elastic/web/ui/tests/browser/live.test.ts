// The pages keep themselves fresh, and only while somebody looks; they act only for who may, and only after a yes.
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import type { Page } from "playwright-core";
import { type Session, start } from "./browser.ts";

let session: Session;
before(async () => {
  session = await start();
});
afterEach(() => {
  Object.assign(session.fixture, { edit: true, down: false });
});
after(() => session.close());

/** Makes the page believe that it is hidden or seen, as a browser tells it. */
const hide = (page: Page, hidden: boolean) =>
  page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);

/** Waits until the page has asked so many more questions. */
async function asks(more: number): Promise<void> {
  const from = session.fixture.asked.length;
  while (session.fixture.asked.length < from + more) await new Promise((resolve) => setTimeout(resolve, 20));
}

test("nothing is asked while the page is hidden, and at once when it is seen again", async () => {
  const page = await session.open("?run=run/running");
  await page.getByText("Live", { exact: true }).waitFor();
  await asks(2);
  await hide(page, true);
  // What was under way may still arrive; after it there is silence, longer than several pauses between questions.
  await page.waitForTimeout(300);
  const before = session.fixture.asked.length;
  await page.waitForTimeout(2500);
  assert.equal(session.fixture.asked.length, before);
  await hide(page, false);
  await asks(1);
  await page.close();
});

test("an answer that has not changed is not sent again", async () => {
  const page = await session.open("?run=run/running");
  const answer = await page.waitForResponse((response) => response.status() === 304 && response.url().includes("/api/run/running"));
  assert.equal(answer.status(), 304);
  await page.close();
});

test("while the server is down the page keeps what it has and says how old it is", async () => {
  const page = await session.open("?run=run/running");
  await page.getByText("Live", { exact: true }).waitFor();
  session.fixture.down = true;
  await page.getByText(/cannot be read from this server: down.* What you see is/).waitFor();
  await page.getByText("Training, all 8 workers at work").waitFor();
  session.fixture.down = false;
  await page.getByText("Live", { exact: true }).waitFor();
  await page.close();
});

test("who may not edit sees no buttons", async () => {
  session.fixture.edit = false;
  for (const view of ["overview", "workers", "checkpoints"]) {
    const page = await session.open(`?run=run/running&view=${view}`);
    await page.getByText("Training, all 8 workers at work").waitFor();
    await page.getByRole(view === "overview" ? "img" : "table").first().waitFor();
    assert.equal(await page.getByRole("button", { name: /^(Scale|Save now|Stop|pin|unpin|resume from here|exclude)$/ }).count(), 0);
    await page.close();
  }
});

test("who may edit is told the cost, can leave it be, and is told what happens next", async () => {
  const page = await session.open("?run=run/running");
  const { acted } = session.fixture;
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("dialog").getByText(/To go on later takes about 2 min/).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.deepEqual(acted, []);
  await page.getByRole("button", { name: "Scale" }).click();
  const confirm = page.getByRole("dialog").getByRole("button", { name: "Scale" });
  assert.ok(await confirm.isDisabled(), "as many workers as now are no change");
  await page.getByRole("spinbutton").fill("12");
  await confirm.click();
  await page.getByText("Asked for scale. It happens within a few seconds.").waitFor();
  assert.deepEqual(acted, [{ name: "scale", body: { workers: 12 }, marked: true }]);
  await page.close();
});

test("a refusal is shown with the server's words, and nothing else happens", async () => {
  const page = await session.open("?run=run/running&view=checkpoints");
  await page.getByRole("button", { name: "resume from here" }).first().click();
  session.fixture.edit = false;
  await page.getByRole("dialog").getByRole("button", { name: "Resume from here" }).click();
  await page.getByRole("alert").getByText("you may not edit this run").waitFor();
  await page.close();
});
