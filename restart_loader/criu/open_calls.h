// What the parts of the library in CRIU (criu_library.h) do when CRIU opens a file.
#pragma once

// `file`: what openat(2) has returned, with `errno`. Returns what CRIU gets. See
// memory_apart_calls.cc.
int after_open(int directory, const char* name, int flags, int file);

// CRIU creates a file outside of its images. See deleted_files_calls.cc.
void note_created(const char* path, int flags, int file);
// The image of a deleted file does not exist. Returns the one without data, or -1 with `errno`.
int open_deleted_apart(int directory, const char* name);
// CRIU sets the size of a file. Puts the filled file in the place of a deleted one. Returns false
// with `errno` on an error.
bool fill_deleted(int file);

// CRIU has opened a process's list of pages. See hidden_memory_calls.cc.
void note_page_list(int directory, int file);

// CRIU begins a restore, and has no child yet. See inherited_calls.cc.
void set_inherited();
