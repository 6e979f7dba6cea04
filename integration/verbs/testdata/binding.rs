// A program in Rust calls libibverbs as bindings do: it registers memory with a device.
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::null_mut;

#[link(name = "ibverbs")]
extern "C" {
    fn ibv_get_device_list(n: *mut c_int) -> *mut *mut c_void;
    fn ibv_free_device_list(list: *mut *mut c_void);
    fn ibv_get_device_name(device: *mut c_void) -> *const c_char;
    fn ibv_open_device(device: *mut c_void) -> *mut c_void;
    fn ibv_close_device(context: *mut c_void) -> c_int;
    fn ibv_alloc_pd(context: *mut c_void) -> *mut c_void;
    fn ibv_dealloc_pd(pd: *mut c_void) -> c_int;
    fn ibv_reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut c_void;
    fn ibv_dereg_mr(mr: *mut c_void) -> c_int;
    fn ibv_create_cq(
        context: *mut c_void,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut c_void,
        vector: c_int,
    ) -> *mut c_void;
    fn ibv_destroy_cq(cq: *mut c_void) -> c_int;
}

const LOCAL_WRITE: c_int = 1;

fn main() {
    let mut n = 0;
    let mut memory = vec![0u8; 1 << 16];
    unsafe {
        let list = ibv_get_device_list(&mut n);
        assert!(!list.is_null() && n > 0, "there is no device");
        let name = std::ffi::CStr::from_ptr(ibv_get_device_name(*list));
        println!("device {}", name.to_string_lossy());
        let context = ibv_open_device(*list);
        assert!(!context.is_null(), "ibv_open_device");
        ibv_free_device_list(list);
        let pd = ibv_alloc_pd(context);
        assert!(!pd.is_null(), "ibv_alloc_pd");
        let mr = ibv_reg_mr(pd, memory.as_mut_ptr() as *mut c_void, memory.len(), LOCAL_WRITE);
        assert!(!mr.is_null(), "ibv_reg_mr");
        let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
        assert!(!cq.is_null(), "ibv_create_cq");
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
    println!("all done");
}
