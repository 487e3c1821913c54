// The whole of it: one run, or the list of all runs, inside the page of Airflow or of `airflow-elastic ui`.
import { useSearchParams } from "react-router-dom";
import { Guard } from "./parts/guard.tsx";
import { RunPage } from "./run/run_page.tsx";
import { runOf, type TaskInstanceWords } from "./run/where.ts";
import { RunsPage } from "./runs/runs_page.tsx";

export function Page(props: TaskInstanceWords) {
  const [words] = useSearchParams();
  const path = runOf(props) ?? words.get("run");
  const inAirflow = runOf(props) !== null;
  return (
    <div className="elastic">
      <Guard key={path}>{path ? <RunPage path={path} named={!inAirflow} /> : <RunsPage />}</Guard>
    </div>
  );
}
