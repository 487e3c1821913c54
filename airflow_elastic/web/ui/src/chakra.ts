// The components of Chakra UI that the pages use. Inside Airflow they are Airflow's own; host.tsx brings them elsewhere.
// One list for both, so that the page around never lacks what the pages ask for.
export { Badge, Button, CloseButton, Dialog, Input, NativeSelect, Portal } from "@chakra-ui/react";
