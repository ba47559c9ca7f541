// What the parts of the library in CRIU (criu_library.h) do when CRIU opens a file.
#pragma once

// `file`: what openat(2) has returned, with `errno`. Returns what CRIU gets. See
// memory_apart_calls.cc.
int after_open(int directory, const char* name, int flags, int file);

// CRIU has opened a process's list of pages. See hidden_memory_calls.cc.
void note_page_list(int directory, int file);

// CRIU begins a restore, and has no child yet. See inherited_calls.cc.
void set_inherited();
