//! The table of entry points, which follows the source.

use super::kernels::POSITIONS;
use super::{Rewriter, quoted};
use crate::library::ParameterKind;

impl Rewriter<'_> {
    /// C++ that calls each kernel with a dispatch's buffers and the lane's positions.
    pub(super) fn entry_points(&self) -> String {
        let mut text = String::from(
            "\n# 1 \"<entry points>\"\n#undef device\n#undef constant\n#undef threadgroup\n#undef thread\n",
        );
        text.push_str("#ifndef MSL_STRICT\n");
        let mut table = String::new();
        for (n, instance) in self.instances.iter().enumerate() {
            let Some(kernel) = self.kernel_of(instance) else { continue };
            let call = format!("{}{}", instance.kernel, instance.template_arguments);
            let (mut arguments, mut present) = (Vec::new(), String::new());
            for (k, p) in kernel.parameters.iter().enumerate() {
                let parameter = format!("msl_parameter<{k}, msl_f>");
                arguments.push(match p.kind {
                    ParameterKind::Buffer(i) => {
                        format!("msl_memory<{parameter}>::at(c->group->buffers[{i}])")
                    }
                    ParameterKind::Threadgroup(i) => {
                        format!("msl_memory<{parameter}>::at(c->group->threadgroup[{i}])")
                    }
                    ParameterKind::Position(name) => {
                        let from = POSITIONS.iter().find(|(n, _)| *n == name).map_or("", |(_, from)| from);
                        format!("msl_position<{parameter}>({from})")
                    }
                });
                if let Some(c) = &p.condition {
                    present.push_str(&format!("if (i == {k}) return (bool) {c}; "));
                }
            }
            text.push_str(&format!(
                "typedef decltype(&{call}) msl_function_{n};\n\
                 static MSL_UNCHECKED void msl_run_{n}(const msl_lane_context * c) {{ \
                 typedef decltype(&{call}) msl_f; (void) c; {call}({}); }}\n\
                 static MSL_UNCHECKED bool msl_present_{n}(unsigned i) {{ (void) i; {present}return true; }}\n",
                arguments.join(", ")
            ));
            table.push_str(&format!(
                "{{ {}, msl_run_{n}, msl_present_{n}, (const void *) (msl_function_{n}) &{call} }}, ",
                quoted(&instance.host_name)
            ));
        }
        text.push_str(&format!(
            "static const msl_entry msl_entries[] = {{ {table}{{ nullptr, nullptr, nullptr, nullptr }} }};\n"
        ));
        text.push_str(
            "MSL_UNCHECKED const msl_entry * msl_entry_at(unsigned i) { return &msl_entries[i]; }\n",
        );
        text.push_str(
            "extern \"C\" __attribute__((visibility(\"default\"))) MSL_UNCHECKED bool msl_present(unsigned f, unsigned i) { return msl_entries[f].present(i); }\n",
        );
        text.push_str("#endif\n");
        text
    }
}
