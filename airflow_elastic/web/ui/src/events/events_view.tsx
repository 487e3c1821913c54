// The journal in words, newest first, each event with its evidence.
import { useEffect, useState } from "react";
import type { EventRow, Level, Overview } from "../api/types.ts";
import { count } from "../format/numbers.ts";
import { Choice } from "../parts/choice.tsx";
import { Empty, Panel, Pending } from "../parts/panel.tsx";
import { useWords } from "../parts/query.ts";
import { Search } from "../parts/search.tsx";
import { EventItem } from "./event_item.tsx";
import { useEvents } from "./use_events.ts";

const LEVELS: { value: "" | Level; word: string }[] = [
  { value: "", word: "All" },
  { value: "warning", word: "Warnings" },
  { value: "error", word: "Errors" },
];
const AT_FIRST = 200;

export function EventsView({ path }: { path: string; overview: Overview }) {
  const [words, change] = useWords();
  const level = (words.get("level") ?? "") as "" | Level;
  const text = words.get("q") ?? "";
  const { events, total, trouble, complete } = useEvents(path, level, text);
  const [shown, setShown] = useState(AT_FIRST);
  useEffect(() => setShown(AT_FIRST), [path, level, text]);
  const newestFirst = events.toReversed();
  const tools = (
    <div className="el-tools">
      <Choice label="Level" value={level} options={LEVELS} onChange={(value) => change({ level: value })} />
      <Search label="Search events" value={text} onChange={(q) => change({ q })} />
    </div>
  );
  const filtered = level !== "" || text !== "";
  const title = `${count(total, "event")}${filtered ? " like that" : ""}`;
  return (
    <Panel title={total === 0 && !complete ? "Events" : title} aside={tools}>
      {events.length === 0 && !complete && <Pending trouble={trouble} lines={6} />}
      {events.length === 0 && complete && <Empty>{filtered ? "No event is like that." : "Nothing has happened yet."}</Empty>}
      <ol className="el-events">
        {newestFirst.slice(0, shown).map((event: EventRow) => (
          <EventItem key={event.seq} event={event} />
        ))}
      </ol>
      {newestFirst.length > shown && (
        <button type="button" className="el-more" onClick={() => setShown(shown + AT_FIRST)}>
          Show earlier events
        </button>
      )}
    </Panel>
  );
}
